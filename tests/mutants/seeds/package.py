"""Bugs to seed into photonlite/*.py."""

from tests.mutants.mutant import SIMULATION, Mutant

MUTANTS = [
    Mutant(
        "a failed name leaves the others running until it is its turn",
        "api/session.py",
        "            part.future.add_done_callback(partial(_fail_with, handle))\n",
        "",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "the requests of a call forget to be strict",
        "api/session.py",
        "dataclasses.replace(request, strict=handle.request.strict)",
        "dataclasses.replace(request, strict=False)",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "truncation: strict callers get a cut answer",
        "request.py",
        'if not self.strict or finish_reason == "stop":',
        "if True:",
        "tests/test_truncation.py",
    ),
    Mutant(
        "nothing is encoded while a grammar is compiled",
        "api/session.py",
        "if self._config.prefix_caching and task.reads_images:",
        "if False:",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "closing does not wait for what is on its way to the engine",
        "api/session.py",
        "while waiting := [",
        "while waiting := False and [",
        "tests/api/test_session.py tests/test_typed_answers.py",
    ),
    Mutant(
        "a recomputed sequence forgets its last token",
        "sequence.py",
        "        return self.prompt_length + len(self.tokens)\n",
        "        return self.prompt_length + max(0, len(self.tokens) - 1)\n",
        f"tests/scheduler {SIMULATION}",
    ),
    Mutant(
        "numbers of NumPy are kept as they are",
        "settings.py",
        "        object.__setattr__(settings, field.name, plain(getattr(settings, field.name)))\n",
        "        pass\n",
        "tests/test_numeric.py",
    ),
    Mutant(
        "tables: handles that have ended are kept",
        "api/session.py",
        "        self.open.discard(handle)\n",
        "",
        "tests/api/test_session_steps.py",
    ),
    Mutant(
        "a data set has images as their EXIF turns them",
        "cli/export.py",
        " and exif_orientation(image) == 1",
        "",
        "tests/cli/test_export.py",
    ),
    Mutant(
        "the YAML of a data set has a relative path, which trainers look for elsewhere",
        "cli/dataset.py",
        "str(folder.resolve())",
        "folder.name",
        "tests/cli/test_export.py",
    ),
    Mutant(
        "real-time requests pay for thumbnails",
        "api/tasks.py",
        "draws and not realtime",
        "draws",
        "tests/test_notebook.py",
    ),
    Mutant(
        "items of a sum keep the class ids of their parts",
        "results/spatial.py",
        "                item.class_id = names.index(item.label)\n",
        "                pass\n",
        "tests/results/test_spatial.py",
    ),
    Mutant(
        "labels together may cover a small image",
        "results/drawing/labels.py",
        "                room -= area\n",
        "",
        "tests/results/drawing/test_labels.py",
    ),
    Mutant(
        "rows of a ROS image are read without their padding",
        "ros.py",
        "padded.reshape(height, step)[:, :row]",
        "padded[: height * row]",
        "tests/test_ros.py",
    ),
]
