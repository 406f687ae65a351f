"""Videos: frames of files, cameras and network streams; drawn frames as a file; answers about every frame."""
