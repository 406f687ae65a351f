"""The nano checkpoint. Imports go scenes <- questions <- training <- evaluation <- adapter <- demo."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
