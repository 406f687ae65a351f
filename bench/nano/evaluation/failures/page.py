"""HTML page of wrong answers by skill, worst scenes first, with truth and answers drawn on the images.

```
headline figures, colours, links to the sections
section a skill ── card a scene ── image a question, words below
```
"""

import shutil
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.nano.evaluation.failures.drawing import COLOURS, jpeg, thumbnail
from bench.nano.evaluation.failures.panels import SECTIONS, Panel, Role, Section
from bench.nano.evaluation.figures.headline import Headline
from bench.nano.evaluation.records import SceneRecord
from bench.nano.scenes.held_out.backgrounds import HELD_OUT_BACKGROUNDS
from bench.nano.scenes.held_out.scene import Scene, make_scene
from bench.nano.scenes.objects import SceneObject
from bench.nano.scenes.sprites import Sprites

TITLE = "What nano gets wrong"
MAX_BYTES = 12_000_000
"""Of the page with all its images."""
_TEXT_BYTES = 1_500_000  # of them, kept for the text
_PANELS = 3  # of a scene at most

_LEGEND: tuple[tuple[Role, str], ...] = (
    ("found", "truth, found"),
    ("missed", "truth, missed"),
    ("right", "answer, right"),
    ("wrong", "answer, wrong"),
    ("reference", "mark handed in with the question"),
)
_STYLE = """
:root { --ink: #1c1c22; --soft: #6d6d78; --line: #e3e1dc; --card: #fff; --page: #f5f3ee }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf0; --soft: #9a9aa6; --line: #34343c; --card: #212127; --page: #17171b }
}
* { box-sizing: border-box }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0; color: var(--ink); background: var(--page) }
section { scroll-margin-top: 60px }
header, section { max-width: 1500px; margin: 0 auto; padding: 0 24px }
h1 { font-size: 30px; margin: 28px 0 4px }
h2 { font-size: 22px; margin: 36px 0 0 }
.soft { color: var(--soft); margin: 2px 0 14px }
nav { position: sticky; top: 0; z-index: 1; background: var(--page); border-bottom: 1px solid var(--line) }
nav div { max-width: 1500px; margin: 0 auto; padding: 10px 24px; display: flex; flex-wrap: wrap; gap: 6px }
nav a { color: inherit; text-decoration: none; border: 1px solid var(--line); border-radius: 99px; padding: 3px 12px;
        background: var(--card) }
nav a:hover { border-color: var(--ink) }
nav span { color: var(--soft) }
ul { list-style: none; padding: 0; margin: 14px 0; display: flex; flex-wrap: wrap; gap: 8px }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)) }
.figures li { background: var(--card); border: 1px solid var(--line); border-left: 5px solid FOUND; border-radius: 6px;
              padding: 5px 12px }
.figures li.no { border-left-color: WRONG }
.figures b { font-size: 18px; display: block; font-variant-numeric: tabular-nums }
.figures small { color: var(--soft); display: block }
.legend li { display: flex; align-items: center; gap: 6px; margin-right: 12px }
.legend i { width: 16px; height: 16px; border-radius: 4px; border: 2px solid #101014 }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(290px, 1fr)); gap: 16px; align-items: start }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden }
article img { display: block; width: 100%; height: 280px; object-fit: contain; background: #26262b }
article p { margin: 8px 12px }
footer { color: var(--soft); font-size: 13px; padding: 6px 12px 8px; border-top: 1px solid var(--line) }
del { color: WRONG; text-decoration-thickness: 2px }
ins { color: FOUND; text-decoration: none; font-weight: 600 }
main:has(section:target) section:not(:target) { display: none }
"""


def write_failures(
    folder: Path,
    records: Sequence[SceneRecord],
    objects: Sequence[SceneObject],
    sprites: Sprites,
    headline: Sequence[Headline] = (),
    limit: int = 24,
) -> Path:
    """Write `failures.html` and its images, at most `MAX_BYTES` in all. Returns the page."""
    images = folder / "failures"
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir(parents=True)
    sections = [section for section in SECTIONS if any(map(section.examined, records))]
    room = (MAX_BYTES - _TEXT_BYTES) // max(1, len(sections))
    links, blocks = [], []
    for section in sections:
        failed = _failed(section, records)
        links.append(f'<a href="#{section.name}">{section.title} <span>{len(failed)}</span></a>')
        cards = _cards(folder, section, failed[:limit], objects, sprites, room)
        blocks.append(_section_html(section, failed, sum(map(section.examined, records)), cards))
    page = folder / "failures.html"
    page.write_text(_page_html(len(records), headline, links, blocks), encoding="utf-8")
    return page


def _failed(section: Section, records: Sequence[SceneRecord]) -> list[tuple[SceneRecord, list[Panel]]]:
    """Return the scenes with mistakes, the worst first, and so the images of a scene."""
    failed = [(record, sorted(panels, key=lambda panel: -panel.badness)) for record in records
              if (panels := section.panels(record))]  # fmt: skip
    return sorted(failed, key=lambda one: -sum(panel.badness for panel in one[1]))


def _cards(
    folder: Path,
    section: Section,
    failed: Sequence[tuple[SceneRecord, list[Panel]]],
    objects: Sequence[SceneObject],
    sprites: Sprites,
    room: int,
) -> list[str]:
    """Draw the images of a section and give its cards, as many as there is room for (bytes)."""
    cards: list[str] = []
    for record, panels in failed:
        # The image is made anew from its seed.
        scene = make_scene(record.seed, objects, sprites)
        for number, panel in enumerate(panels[:_PANELS]):
            name = f"failures/{section.name}-{record.seed}-{number}.jpg"
            image = jpeg(thumbnail(scene, panel.shapes))
            room -= len(image)
            if room < 0:
                return cards
            (folder / name).write_bytes(image)
            cards.append(_card_html(name, record, scene, panel))
    return cards


def _card_html(name: str, record: SceneRecord, scene: Scene, panel: Panel) -> str:
    new = ", never trained on" if record.background in HELD_OUT_BACKGROUNDS else ""
    notes = f"{record.seed} · {escape(record.background)}{new} · {record.width}&nbsp;x&nbsp;{record.height}"
    return (
        f'<article><img loading="lazy" src="{name}" alt="{len(scene.objects)} objects">'
        f"{''.join(panel.lines)}<footer>{notes}</footer></article>"
    )


def _section_html(section: Section, failed: Sequence[object], examined: int, cards: Sequence[str]) -> str:
    about = f"{section.about}; {len(failed)} of {examined} scenes have a mistake"
    shown = "\n".join(cards)
    return (
        f'<section id="{section.name}"><h2>{section.title}</h2><p class="soft">{about}</p>\n'
        f'<div class="cards">\n{shown}\n</div></section>'
    )


def _page_html(scenes: int, headline: Sequence[Headline], links: Sequence[str], blocks: Sequence[str]) -> str:
    style = _STYLE.replace("FOUND", COLOURS["found"]).replace("WRONG", COLOURS["wrong"])
    figures = "".join(
        f'<li class="{"yes" if row.met else "no"}"><b>{row.figure:.3f}</b>{escape(row.name)} '
        f"<small>{'at most' if row.at_most else 'at least'} {row.limit:.2f}</small></li>"
        for row in headline
    )
    legend = "".join(f'<li><i style="background:{COLOURS[role]}"></i>{text}</li>' for role, text in _LEGEND)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{TITLE}</title><style>{style}</style>\n'
        f'<header><h1>{TITLE}</h1><p class="soft">{scenes} held-out scenes; the worst of each skill come first</p>\n'
        f'<ul class="figures">{figures}</ul>\n'
        f'<ul class="legend">{legend}<li>In text: <del>wrong</del> <ins>right</ins></li></ul></header>\n'
        f'<nav><div><a href="#">All</a>{"".join(links)}</div></nav>\n'
        f"<main>\n{chr(10).join(blocks)}\n</main></html>\n"
    )
