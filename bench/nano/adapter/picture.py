"""`python -m bench.nano.adapter.picture` draws assets/shelf.jpg, and prints what it shows."""

from bench.nano import ROOT
from bench.nano.adapter.data import new_objects
from bench.nano.scenes.held_out.scene import Scene, make_scene
from bench.nano.scenes.sprites import render_sprites

PICTURE = ROOT / "assets" / "shelf.jpg"
_SEED = 77_011


def draw() -> Scene:
    objects = new_objects()
    return make_scene(_SEED, objects, render_sprites(objects), background="wood", size=(640, 480), count=7)


if __name__ == "__main__":
    scene, names = draw(), new_objects()
    PICTURE.write_bytes(scene.jpeg)
    for placed in scene.objects:
        print(names[placed.index].name, [round(edge, 3) for edge in placed.box])
