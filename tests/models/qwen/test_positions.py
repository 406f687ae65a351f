from photonlite.models.qwen.positions import prompt_positions


def test_the_example_of_the_public_code() -> None:
    found = prompt_positions([3, (2, 3), 2])

    assert found.axes[:, 3:9].tolist() == [[3] * 6, [3, 3, 3, 4, 4, 4], [3, 4, 5, 3, 4, 5]]
    assert found.axes[:, :3].tolist() == [[0, 1, 2]] * 3
    assert found.axes[:, 9:].tolist() == [[6, 7]] * 3
    assert found.delta == -3


def test_text_alone_counts_up() -> None:
    found = prompt_positions([2, 3])

    assert found.axes.tolist() == [[0, 1, 2, 3, 4]] * 3
    assert found.delta == 0


def test_every_image_starts_behind_the_longer_side_of_the_one_before() -> None:
    found = prompt_positions([1, (3, 1), 1, (1, 4), 1])

    assert found.axes[:, -1].tolist() == [1 + 3 + 1 + 4] * 3
    assert found.delta == 10 - 10
    assert found.axes[:, 5:9].tolist() == [[5] * 4, [5] * 4, [5, 6, 7, 8]]
