"""The playground in a real browser: Debian's Chromium, headless, against a real server with a fake model."""

import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the server is an extra: photonlite[serve]")
pytest.importorskip("selenium", reason="selenium drives the browser: photonlite[test]")

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from photonlite.errors import ImageTooLargeError, UnsupportedSkillError
from photonlite.results import Detections, Metrics
from tests.server.live import GUARD, Live, live, live_model

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="there is no chromium and chromedriver (Debian: chromium, chromium-driver)"
)

SIZE = (600, 400)
GREY = (90, 90, 90)
BLUE = (43, 98, 227)
METRICS = Metrics(0.001, 0.002, 0.003, 0.004, prompt_tokens=740, output_tokens=3)


class Page:
    """The playground in a browser's tab."""

    def __init__(self, driver: webdriver.Chrome, server: Live) -> None:
        self.driver = driver
        self.server = server
        self.fake: Any = server.fake

    def open(self) -> None:
        self.driver.get(self.server.url)
        self.until(lambda: self["ready"].text)

    def __getitem__(self, name: str) -> WebElement:
        return self.driver.find_element(By.ID, name)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, true: Any) -> Any:
        return WebDriverWait(self.driver, GUARD, poll_frequency=0.02).until(lambda _: true())

    def script(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def upload(self, path: Path) -> None:
        self["file"].send_keys(str(path))
        self.until(lambda: self.script("return document.getElementById('picture').naturalWidth"))

    def choose(self, skill: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, f"label:has(> [value={skill}])").click()

    def run(self) -> None:
        self["run"].click()
        self.until(lambda: self["run"].text == "Run" and (self["timings"].is_displayed() or self.errors()))

    def errors(self) -> dict[str, str]:
        """What is wrong, by the place where the page says so."""
        return {str(place.get_attribute("id")): place.text for place in self.all(".error") if place.is_displayed()}

    def rect(self, element: WebElement) -> tuple[float, float, float, float]:
        rect = "const r = arguments[0].getBoundingClientRect(); return [r.x, r.y, r.right, r.bottom]"
        x0, y0, x1, y1 = self.script(rect, element)
        return x0, y0, x1, y1

    def rects(self, *selectors: str) -> list[list[float]] | None:
        """Boxes of the first element of each selector, read at once; `None` while one is missing."""
        read = """
            const found = arguments[0].map(selector => document.querySelector(selector));
            if (!found.every(Boolean)) return null;
            const edges = r => [r.x, r.y, r.right, r.bottom];
            return found.map(element => edges(element.getBoundingClientRect()));
        """
        return self.script(read, list(selectors))

    def place(self, element: WebElement) -> list[float]:
        """Where an element lies on the image, in the image's own pixels."""
        left, top, right, bottom = self.rect(self["picture"])
        across, down = SIZE[0] / (right - left), SIZE[1] / (bottom - top)
        x0, y0, x1, y1 = self.rect(element)
        return [(x0 - left) * across, (y0 - top) * down, (x1 - left) * across, (y1 - top) * down]

    def arguments(self) -> dict[str, Any]:
        """Settings of the last call that the model got, without those that the server adds."""
        return {name: value for name, value in self.fake.calls[-1].arguments.items() if name != "settings"}


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (
        "--headless=new",
        "--no-sandbox",  # refuses to start as root with one
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        "--force-color-profile=srgb",
        "--hide-scrollbars",
        "--window-size=1200,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
    yield started
    started.quit()


@pytest.fixture
def server() -> Iterator[Live]:
    with live() as started:
        yield started


@pytest.fixture
def page(driver: webdriver.Chrome, server: Live) -> Iterator[Page]:
    resize(driver, 1200, 900)
    shown = Page(driver, server)
    shown.open()
    yield shown
    complaints = [entry["message"] for entry in driver.get_log("browser")]
    assert not [text for text in complaints if "Content Security Policy" in text or "Uncaught" in text]
    driver.get("about:blank")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "grey.png"
    Image.new("RGB", SIZE, GREY).save(path)
    return path


def resize(driver: webdriver.Chrome, width: int, height: int) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def objects(*boxes: tuple[float, float, float, float]) -> Detections:
    names = ("x_min", "y_min", "x_max", "y_max")
    places = [dict(zip(names, box, strict=True)) for box in boxes]
    found = [{**place, "label": "mug", "score": 0.9 - 0.1 * number} for number, place in enumerate(places)]
    return Detections(found, metrics=METRICS, finish_reason="stop")


def detect(page: Page, image: Path, word: str = "mug") -> None:
    page.upload(image)
    page["object"].send_keys(word)
    page.run()


@pytest.mark.long
def test_boxes_lie_on_the_pixels_that_they_are_about(page: Page, image: Path) -> None:
    page.fake.results["detect"] = objects((0.1, 0.2, 0.3, 0.7), (0.5, 0.25, 1.0, 1.0))

    detect(page, image)

    first, second = page.all("#picture-overlay .mark.box")
    assert page.place(first) == pytest.approx([60, 80, 180, 280], abs=0.6)
    assert page.place(second) == pytest.approx([300, 100, 600, 400], abs=0.6)
    assert [mark.text for mark in (first, second)] == ["mug 0.90", "mug 0.80"]
    assert page.fake.calls[0].image == image.read_bytes()
    assert page["status"].text.startswith("2 boxes in ")


@pytest.mark.long
def test_a_box_is_seen_where_it_is(page: Page, image: Path) -> None:
    page.fake.results["detect"] = objects((0.25, 0.25, 0.75, 0.75))

    detect(page, image)

    page.script("document.activeElement.blur()")
    seen = Image.open(io.BytesIO(page["picture-frame"].screenshot_as_png)).convert("RGB")
    width, height = seen.size
    middle = height // 2
    assert seen.getpixel((round(width * 0.25) + 1, middle)) == BLUE
    assert seen.getpixel((round(width * 0.75) - 2, middle)) == BLUE
    assert seen.getpixel((width // 2, middle)) == GREY
    assert seen.getpixel((round(width * 0.25) - 6, middle)) == GREY


@pytest.mark.long
def test_points_and_outlines_lie_where_they_belong(page: Page, image: Path) -> None:
    page.upload(image)
    page.choose("point")
    page["object"].send_keys("mug")
    page.run()
    x0, y0, x1, y1 = page.place(page.all("#picture-overlay .mark.dot")[0])
    assert [(x0 + x1) / 2, (y0 + y1) / 2] == pytest.approx([300, 200], abs=0.6)

    page.choose("segment")
    page.run()

    (line,) = page.all("#picture-overlay .mark path.line")
    on_screen = """
        const box = arguments[0].getBBox(), {a, d, e, f} = arguments[0].getScreenCTM();
        return [box.x * a + e, box.y * d + f, (box.x + box.width) * a + e, (box.y + box.height) * d + f];
    """
    box = page.script(on_screen, line)
    left, top, right, bottom = page.rect(page["picture"])
    width, height = right - left, bottom - top
    assert box == pytest.approx([left + width / 4, top + height / 4, left + width * 3 / 4, top + height * 3 / 4], abs=1)


@pytest.mark.long
def test_names_stay_inside_the_image(page: Page, image: Path) -> None:
    page.fake.results["detect"] = objects((0.97, 0.5, 1.0, 0.6), (0.0, 0.0, 0.02, 0.02))

    detect(page, image)

    left, top, right, _ = page.rect(page["picture"])
    for tag in page.all("#picture-overlay .tag"):
        x0, y0, x1, _ = page.rect(tag)
        assert x0 >= left - 0.5
        assert x1 <= right + 0.5
        assert y0 >= top


@pytest.mark.long
def test_the_list_picks_its_object_out_of_the_image(page: Page, image: Path) -> None:
    page.fake.results["detect"] = objects((0.1, 0.2, 0.3, 0.7), (0.5, 0.25, 1.0, 1.0))
    detect(page, image)

    rows, marks = page.all("#items button"), page.all("#picture-overlay .mark")
    assert [row.text.split("\n")[-1] for row in rows] == ["0.90", "0.80"]
    page.script("arguments[0].focus()", rows[1])

    assert ["active" in str(mark.get_attribute("class")) for mark in marks] == [False, True]


@pytest.mark.long
def test_nothing_found_is_said(page: Page, image: Path) -> None:
    page.fake.results["detect"] = objects()

    detect(page, image, "unicorn")

    assert page["status"].text.startswith("No unicorn found in ")


@pytest.mark.long
def test_times_of_every_stage_are_shown(page: Page, image: Path) -> None:
    detect(page, image)

    times = dict(row.text.split("\n") for row in page.all("#times div"))
    assert list(times) == ["Preprocess", "Queue", "Encode", "Prefill", "Decode", "Network"]
    assert (times["Preprocess"], times["Decode"]) == ("1.0 ms", "4.0 ms")


@pytest.mark.long
def test_a_large_photograph_is_sent_smaller(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    Image.new("RGB", (3000, 1500), GREY).save(path)

    detect(page, path)

    with Image.open(io.BytesIO(page.fake.calls[0].image)) as sent:
        assert sent.size == (2048, 1024)
    assert page["picture-size"].text == "3000 × 1500, sent as 2048 × 1024"


@pytest.mark.parametrize("event", ["drop", "paste"])
def test_images_can_be_dropped_and_pasted(page: Page, event: str) -> None:
    page.script(
        """
        const canvas = Object.assign(document.createElement("canvas"), {width: 30, height: 20});
        canvas.getContext("2d").fillRect(0, 0, 30, 20);
        canvas.toBlob((blob) => {
          const data = new DataTransfer();
          data.items.add(new File([blob], "small.png", {type: "image/png"}));
          const made = arguments[0] === "drop" ? new DragEvent("drop", {dataTransfer: data, bubbles: true})
            : new ClipboardEvent("paste", {clipboardData: data, bubbles: true});
          document.body.dispatchEvent(made);
        });
        """,
        event,
    )

    page.until(lambda: page["picture-size"].text == "30 × 20")


@pytest.mark.long
def test_an_example_brings_its_word(page: Page) -> None:
    page.all("#examples button")[0].click()
    page.until(lambda: page["picture-size"].text == "960 × 640")

    page.run()

    assert page.arguments() == {"object": ["banana", "cup", "apple"]}


@pytest.mark.long
def test_text_comes_while_it_is_made(page: Page, image: Path) -> None:
    page.server.call(page.fake.hang)
    page.upload(image)
    page.choose("query")
    page["question"].send_keys("How many?")
    page["run"].click()
    page.until(lambda: page["text"].text.strip() == "two")
    assert page["text"].get_attribute("aria-busy") == "true"

    page.server.call(page.fake.release)

    page.until(lambda: page["timings"].is_displayed())
    assert page["text"].text.strip() == "two of them"
    assert page["text"].get_attribute("aria-busy") == "false"


@pytest.mark.long
def test_stop_cancels_what_runs(page: Page, image: Path) -> None:
    page.server.call(page.fake.hang)
    page.upload(image)
    page.choose("caption")
    page["run"].click()
    page.until(lambda: page["text"].text.strip() == "two")

    page["run"].click()

    page.until(lambda: page.fake.cancelled == 1)
    page.until(lambda: page["status"].text == "Stopped.")
    assert page["run"].text == "Run"


@pytest.mark.long
def test_each_skill_sends_what_it_takes(page: Page, image: Path) -> None:
    page.upload(image)
    page.choose("caption")
    page.driver.find_element(By.CSS_SELECTOR, "label:has(> [value=long])").click()
    page.run()
    assert page.arguments() == {"length": "long"}

    page.choose("query")
    page["question"].send_keys("How many?")
    page["reasoning"].click()
    page.run()
    assert page.arguments() == {"question": "How many?", "reasoning": True}


@pytest.mark.long
def test_missing_words_and_images_are_said_at_their_place(page: Page, image: Path) -> None:
    page["run"].click()
    assert page.errors() == {"object-error": "Name what to look for."}
    assert page.driver.switch_to.active_element == page["object"]
    assert page["object"].get_attribute("aria-invalid") == "true"

    page["object"].send_keys("mug", Keys.ENTER)
    assert page.errors() == {"picture-error": "Choose an image first."}

    page.upload(image)
    assert page.errors() == {}
    assert page.fake.calls == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "place"),
    [
        (ImageTooLargeError("the image has 70 million pixels"), "picture-error"),
        (UnsupportedSkillError("this checkpoint does not detect"), "skill-error"),
        (RuntimeError("inside"), "run-error"),
    ],
)
def test_the_server_s_errors_are_shown_where_they_belong(page: Page, image: Path, error: Exception, place: str) -> None:
    page.fake.error = error

    detect(page, image)

    (shown,) = page.errors().items()
    assert shown[0] == place
    assert (str(error) in shown[1]) == (place != "run-error")


def test_a_file_that_is_no_image_is_refused(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no image")

    page["file"].send_keys(str(path))

    page.until(lambda: "notes.txt is not an image" in page.errors().get("picture-error", ""))


@pytest.mark.long
def test_a_key_is_asked_for_and_kept_in_the_tab(driver: webdriver.Chrome, image: Path) -> None:
    with live(api_keys=("open-sesame",)) as server:
        page = Page(driver, server)
        page.open()
        detect(page, image)
        assert list(page.errors()) == ["key-error"]
        assert driver.switch_to.active_element == page["key"]

        page["key"].send_keys("open-sesame", Keys.ENTER)
        page.run()

        assert page.errors() == {}
        assert page.script("return [sessionStorage.length, localStorage.length]") == [1, 0]
        assert "open-sesame" not in page["code-text"].text
        assert "$PHOTONLITE_API_KEY" in page["code-text"].text


@pytest.mark.long
def test_a_click_says_which_one_is_meant(page: Page, image: Path) -> None:
    page.upload(image)
    page.choose("point")
    page["object"].send_keys("mug")
    left, top, right, bottom = page.rect(page["picture"])
    dx, dy = (right - left) / 4, (bottom - top) / 4

    click = ActionChains(page.driver).move_to_element_with_offset(page["picture-frame"], round(dx), round(-dy)).click()
    click.perform()
    page.run()
    assert page.arguments()["spatial_refs"] == [pytest.approx([0.75, 0.25], abs=0.003)]

    drag = ActionChains(page.driver).move_to_element_with_offset(page["picture-frame"], 0, 0).click_and_hold()
    drag.move_by_offset(round(-dx), round(dy)).release().perform()
    page.run()
    assert page.arguments()["spatial_refs"] == [pytest.approx([0.25, 0.5, 0.5, 0.75], abs=0.003)]

    page["reference-chip"].click()
    page.run()
    assert page.arguments() == {"object": "mug"}


@pytest.mark.long
def test_everything_works_from_the_keyboard(page: Page, image: Path) -> None:
    page.upload(image)
    press(page, "#object", Keys.TAB, start="#tab-picture")
    page.driver.switch_to.active_element.send_keys("mug")
    press(page, "[name=skill]:checked", Keys.SHIFT + Keys.TAB)
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert page.script("return document.activeElement.value") == "point"

    press(page, "#picture-frame", Keys.SHIFT + Keys.TAB)
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_UP, Keys.ENTER)
    press(page, "#object", Keys.TAB)
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)

    page.until(lambda: page["timings"].is_displayed())
    assert page.arguments() == {"object": "mug", "spatial_refs": [[0.52, 0.48]]}
    press(page, "#min-score", Keys.TAB)
    press(page, "#items button", Keys.TAB)
    assert page.all(".mark.active")


def press(page: Page, selector: str, key: str, start: str | None = None) -> None:
    """Press a key until an element has the focus; whatever has it on the way shows that it does."""
    if start is not None:
        page.script("document.querySelector(arguments[0]).focus()", start)
    for _ in range(40):
        ActionChains(page.driver).send_keys(key).perform() if len(key) == 1 else shifted(page)
        focused = page.driver.switch_to.active_element
        # For a radio button, which is not to be seen, the text beside it shows the focus.
        shown = "const e = arguments[0], hidden = getComputedStyle(e).opacity === '0';"
        outline = "return getComputedStyle(hidden ? e.nextElementSibling : e).outlineStyle"
        assert page.script(shown + outline, focused) != "none"
        if page.script("return arguments[0].matches(arguments[1])", focused, selector):
            return
    raise AssertionError(f"the focus never came to {selector}")


def shifted(page: Page) -> None:
    ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()


@pytest.mark.long
def test_every_control_has_a_name(page: Page, image: Path) -> None:
    detect(page, image)
    controls = page.all("button, input:not([type=file]), textarea, summary, a, [role=tab], [tabindex='0']")
    shown = [control for control in controls if control.is_displayed()]

    assert len(shown) > 10
    assert [control.get_attribute("outerHTML") for control in shown if not control.accessible_name] == []
    fields = page.all("input:not([type=file]), textarea")
    assert page.script("return arguments[0].every((field) => field.labels.length)", fields)


@pytest.mark.long
@pytest.mark.parametrize("width", [360, 768, 1200])
def test_nothing_is_wider_than_the_screen(page: Page, image: Path, width: int) -> None:
    page.fake.results["detect"] = objects(*[(0.1, 0.1, 0.2, 0.2)] * 3)
    resize(page.driver, width, 740)

    detect(page, image, "a mug with a very long name " * 8 + ", cup")

    assert page.script("return document.scrollingElement.scrollWidth") <= width


def test_motion_is_left_out_where_it_is_unwanted(page: Page) -> None:
    def duration(motion: str) -> str:
        emulate(page, {"prefers-reduced-motion": motion})
        return str(page.script("return getComputedStyle(document.getElementById('run')).transitionDuration"))

    moving = duration("no-preference")

    assert (moving == "0s", duration("reduce")) == (False, "0s")


def emulate(page: Page, media: dict[str, str]) -> None:
    features = [{"name": name, "value": value} for name, value in media.items()]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_copied_curl_asks_the_same(page: Page, tmp_path: Path) -> None:
    path = tmp_path / 'it\'s; a, "mug".png'
    Image.new("RGB", SIZE, GREY).save(path)
    detect(page, path, "@it's a $HOME mug; type=x, cup")

    command = page["code-text"].text
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True, timeout=GUARD)

    first, second = page.fake.calls
    assert (first.arguments, first.image) == (second.arguments, second.image)


@pytest.mark.long
def test_copied_python_asks_the_same(page: Page, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("requests", reason="the copied code uses requests")
    page.upload(image)
    page.choose("query")
    page["question"].send_keys('Is it a "mug"?')
    page["reasoning"].click()
    page.run()
    page["code-python"].click()

    monkeypatch.chdir(image.parent)
    exec(compile(page["code-text"].text, "copied", "exec"), {})

    first, second = page.fake.calls
    assert (first.arguments, first.image) == (second.arguments, second.image)


@pytest.mark.long
def test_copied_code_keeps_several_names_and_the_minimum_score(
    page: Page, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("requests", reason="the copied code uses requests")
    detect(page, image, 'mug, "cup"')
    slide(page, 0.4)
    assert "--form-string 'min_score=0.4'" in page["code-text"].text
    page["code-python"].click()

    monkeypatch.chdir(image.parent)
    exec(compile(page["code-text"].text, "copied", "exec"), {})

    assert page.arguments() == {"object": ["mug", '"cup"'], "min_score": 0.4}


@pytest.mark.long
def test_the_answer_can_be_copied_as_json(page: Page, image: Path) -> None:
    detect(page, image)
    page["code-json"].click()
    origin = page.server.url
    for name in ("clipboardReadWrite", "clipboardSanitizedWrite"):
        page.driver.execute_cdp_cmd("Browser.grantPermissions", {"origin": origin, "permissions": [name]})

    page["copy"].click()

    page.until(lambda: page["copy"].text == "Copied")
    assert '"label": "mug"' in page.script("return document.getElementById('code-text').textContent")


@pytest.mark.long
def test_the_page_says_when_the_server_is_gone(driver: webdriver.Chrome, image: Path) -> None:
    with live() as server:
        page = Page(driver, server)
        page.open()
        assert page["ready"].text == "Ready"
    detect(page, image)

    assert page.errors() == {"run-error": "The server cannot be reached. Check that it runs, and try again."}
    page.until(lambda: page["ready"].text == "Offline")


def labelled(*names: str) -> Detections:
    """One box for each name, with scores of 0.9, 0.7, 0.5 and so on."""
    found = objects(*[(0.1 * index, 0.2, 0.1 * index + 0.08, 0.6) for index in range(len(names))])
    for index, (item, name) in enumerate(zip(found["objects"], names, strict=True)):
        item.update(label=name, score=round(0.9 - 0.2 * index, 1))
    return found


def slide(page: Page, score: float) -> None:
    """Move the slider as its keys do: by 0.1 and 0.01."""
    page["min-score"].send_keys(Keys.HOME)
    for _ in range(round(score * 100)):
        page["min-score"].send_keys(Keys.ARROW_RIGHT)


def legend(page: Page) -> list[str]:
    """Names with their counts."""
    return [str(button.get_attribute("textContent")) for button in page.all("#legend button")]


def lit(page: Page) -> list[str]:
    return [mark.text.split()[0] for mark in page.all("#picture-overlay .mark.active")]


@pytest.mark.long
def test_several_names_are_asked_for_at_once_each_in_its_colour(page: Page, image: Path) -> None:
    page.fake.results["detect"] = labelled("cup", "mug", "cup")

    detect(page, image, "mug,, cup ,mug, spoon")

    assert page.arguments() == {"object": ["mug", "cup", "spoon"]}
    assert legend(page) == ["mug 1", "cup 2", "spoon 0"]
    assert page["status"].text.startswith("3 boxes in ")
    colours = [mark.value_of_css_property("border-top-color") for mark in page.all("#picture-overlay .mark.box")]
    assert colours[0] == colours[2] != colours[1]
    swatch = "return getComputedStyle(arguments[0], '::before').backgroundColor"
    mug, cup = (page.script(swatch, button).removeprefix("rgb(")[:-1] for button in page.all("#legend button")[:2])
    assert (cup in colours[0], mug in colours[1]) == (True, True)


@pytest.mark.long
def test_one_name_is_asked_for_as_text_and_has_no_legend(page: Page, image: Path) -> None:
    detect(page, image, " mug, ")

    assert page.arguments() == {"object": "mug"}
    assert not page["legend"].is_displayed()


@pytest.mark.long
def test_too_many_names_are_said_at_their_field(page: Page, image: Path) -> None:
    detect(page, image, ", ".join(f"mug {number}" for number in range(65)))

    assert list(page.errors()) == ["object-error"]
    assert "1 to 64 texts" in page.errors()["object-error"]
    assert page.fake.calls == []


@pytest.mark.long
def test_the_legend_picks_its_name_out_of_the_image(page: Page, image: Path) -> None:
    page.fake.results["detect"] = labelled("cup", "mug", "cup")
    detect(page, image, "mug, cup")
    mug, cup = page.all("#legend button")
    assert lit(page) == []

    ActionChains(page.driver).move_to_element(cup).perform()
    assert lit(page) == ["cup", "cup"]
    ActionChains(page.driver).move_to_element(page["status"]).perform()
    assert lit(page) == []

    mug.click()
    ActionChains(page.driver).move_to_element(cup).perform()
    assert lit(page) == ["cup", "cup"]
    page.script("document.activeElement.blur()")
    ActionChains(page.driver).move_to_element(page["status"]).perform()
    assert lit(page) == ["mug"]
    assert [button.get_attribute("aria-pressed") for button in (mug, cup)] == ["true", "false"]

    mug.send_keys(Keys.SPACE)
    page.script("document.activeElement.blur()")
    assert lit(page) == []


@pytest.mark.long
def test_the_slider_filters_at_once_without_asking_again(page: Page, image: Path) -> None:
    page.fake.results["detect"] = labelled("cup", "mug", "cup")
    detect(page, image, "mug, cup")
    page["code-json"].click()

    slide(page, 0.7)

    assert page["min-score-text"].text == "0.70"
    assert [mark.text for mark in page.all("#picture-overlay .mark")] == ["cup 0.90", "mug 0.70"]
    assert len(page.all("#items li")) == 2
    assert legend(page) == ["mug 1", "cup 1"]
    assert page["status"].text.startswith("2 of 3 boxes in ")
    assert len(json.loads(page["code-text"].text)["objects"]) == 2

    page["min-score"].send_keys(Keys.HOME)

    assert len(page.all("#picture-overlay .mark")) == 3
    assert page["status"].text.startswith("3 boxes in ")
    assert len(page.fake.calls) == 1


@pytest.mark.long
def test_the_next_answer_is_filtered_too(page: Page, image: Path) -> None:
    page.fake.results["detect"] = labelled("mug", "mug", "mug")
    detect(page, image)
    slide(page, 0.6)

    page.run()

    assert [mark.text for mark in page.all("#picture-overlay .mark")] == ["mug 0.90", "mug 0.70"]
    assert page.arguments() == {"object": "mug"}  # lower scores come too: the slider goes back without asking


@pytest.mark.long
def test_the_camera_s_results_are_counted_and_filtered(page: Page) -> None:
    page.fake.results["detect"] = labelled("mug", "cup")

    start_camera(page, "mug, cup")

    page.until(lambda: legend(page) == ["mug 1", "cup 1"])
    slide(page, 0.8)
    page.until(lambda: legend(page) == ["mug 1", "cup 0"])
    assert page.until(lambda: page.rects("#camera-overlay .mark"))
    assert page.arguments() == {"object": ["mug", "cup"]}


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_axe_finds_no_barrier(page: Page, image: Path, width: int, scheme: str) -> None:
    """Names, roles, contrast, order of headings and the like, in every state of the page."""
    axe = pytest.importorskip("axe_core_python.selenium", reason="axe finds barriers: photonlite[test]").Axe()
    emulate(page, {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"})
    resize(page.driver, width, 900)
    names = [f"mug {number}" for number in range(8)]
    page.fake.results["detect"] = labelled(*names)

    def barriers() -> list[str]:
        # The list says to screen readers what the marks show, so axe would pass over the contrast of the marks.
        page.script("document.getElementById('picture-overlay').removeAttribute('aria-hidden')")
        found = axe.run(page.driver)["violations"]
        return [f"{one['id']}: {node['html']}" for one in found for node in one["nodes"]]

    dark = page.script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert dark == (scheme == "dark")
    assert barriers() == []
    page["run"].click()
    assert page.errors()
    assert barriers() == []
    detect(page, image, ", ".join(names))
    assert barriers() == []
    page.script("document.querySelector('#legend button').click()")
    assert barriers() == []
    page.choose("query")
    page["question"].send_keys("How many?")
    page.run()
    assert barriers() == []
    page["key-toggle"].click()
    page["tab-camera"].click()
    assert barriers() == []


@pytest.mark.long
def test_screen_readers_hear_of_results_and_problems(page: Page, image: Path) -> None:
    page["run"].click()
    assert page["object-error"].aria_role == "alert"
    assert "object-error" in str(page["object"].get_attribute("aria-describedby")).split()

    page.fake.results["detect"] = labelled("mug")
    detect(page, image, "mug, cup")

    assert page["status"].aria_role == "status"
    assert page["min-score"].accessible_name == "Minimum score"
    assert page["legend"].accessible_name == "Names"
    assert [button.accessible_name for button in page.all("#legend button")] == ["mug 1", "cup 0"]
    assert page["items"].accessible_name == "What was found"


def start_camera(page: Page, word: str = "mug") -> None:
    page["tab-camera"].click()
    page["object"].send_keys(word)
    page["run"].click()


@pytest.mark.long
def test_the_camera_runs_the_real_time_loop(page: Page) -> None:
    page.fake.results["detect"] = objects((0.1, 0.2, 0.3, 0.7))

    start_camera(page)

    # Every frame draws its marks anew, so that both rectangles are read at once, inside the page.
    (left, top, right, bottom), box = page.until(lambda: page.rects("video", "#camera-overlay .mark.box"))
    width, height = right - left, bottom - top
    wanted = [left + 0.1 * width, top + 0.2 * height, left + 0.3 * width, top + 0.7 * height]
    assert list(box) == pytest.approx(wanted, abs=1)
    assert width / height == pytest.approx(4 / 3, rel=0.01)
    with Image.open(io.BytesIO(page.fake.calls[-1].image)) as frame:
        assert (frame.format, frame.size) == ("JPEG", (640, 480))
    assert page.fake.calls[-1].realtime


@pytest.mark.long
def test_the_camera_tab_tells_rate_latency_and_drops(page: Page) -> None:
    start_camera(page)

    page.until(lambda: float(page["meter-rate"].text.replace("–", "0")) > 0)
    assert int(page["meter-latency"].text) <= int(page["meter-slowest"].text)

    page.server.call(page.fake.hang)
    before = int(page["meter-drops"].text)
    frames = "return document.getElementById('video').getVideoPlaybackQuality().totalVideoFrames"
    seen = page.script(frames)
    page.until(lambda: page.script(frames) >= seen + 8)
    page.server.call(page.fake.release)

    page.until(lambda: int(page["meter-drops"].text) >= before + 5)  # one was being answered, one had just come


@pytest.mark.long
def test_the_question_can_be_changed_while_the_camera_runs(page: Page) -> None:
    start_camera(page)
    page.until(lambda: page.fake.calls)

    page["object"].send_keys("s, cup")
    page.until(lambda: page.arguments() == {"object": ["mugs", "cup"]})
    page.until(lambda: page["legend"].is_displayed())
    page.choose("caption")

    page.until(lambda: page["text"].text == "two of them")
    assert page.all("#camera-overlay .mark") == []
    assert not page["found"].is_displayed()


@pytest.mark.long
@pytest.mark.parametrize("way", ["run", "tab-picture"])
def test_the_camera_and_its_connection_end_with_the_tab(page: Page, way: str) -> None:
    start_camera(page)
    page.until(lambda: page.all("#camera-overlay .mark"))
    page.script("window.track = document.getElementById('video').srcObject.getVideoTracks()[0]")
    assert page.script("return window.track.readyState") == "live"

    page[way].click()

    assert page.script("return window.track.readyState") == "ended"
    assert page.script("return document.getElementById('video').srcObject") is None
    assert page.all("#camera-overlay .mark") == []
    page.until(lambda: page.server.server._ingress.limiter.open == 0)


@pytest.mark.long
def test_a_skill_that_the_model_lacks_is_said_beside_the_skills(page: Page) -> None:
    page.fake.skills = ("caption",)

    start_camera(page)

    page.until(lambda: list(page.errors()) == ["skill-error"])
    page.choose("caption")
    page.until(lambda: page["text"].text == "two of them")
    assert page.errors() == {}


@pytest.mark.long
def test_a_frame_that_fails_does_not_end_the_loop(page: Page) -> None:
    page.fake.error = RuntimeError("inside")
    start_camera(page)
    page.until(lambda: list(page.errors()) == ["camera-error"])

    page.fake.error = None

    page.until(lambda: page.all("#camera-overlay .mark"))
    assert page.errors() == {}


@pytest.mark.long
def test_the_real_time_loop_asks_for_the_key_and_sends_it(driver: webdriver.Chrome) -> None:
    with live(api_keys=("open-sesame",)) as server:
        page = Page(driver, server)
        page.open()
        start_camera(page)
        page.until(lambda: list(page.errors()) == ["key-error"])

        page["key"].send_keys("open-sesame", Keys.ENTER)
        page["run"].click()

        page.until(lambda: page.all("#camera-overlay .mark"))
        page["run"].click()


@pytest.mark.long
def test_the_shipped_checkpoint_finds_boxes_and_answers_on_the_page(driver: webdriver.Chrome) -> None:
    with live_model() as server:
        page = Page(driver, server)
        page.open()
        page.all("[data-example=desk]")[0].click()
        page.until(lambda: page.script("return document.getElementById('picture').naturalWidth"))

        page.run()

        assert page["object"].get_attribute("value") == "banana, cup, apple"
        boxes = page.all("#picture-overlay .mark.box")
        assert len(boxes) == len(page.all("#items li")) == 4
        assert legend(page) == ["banana 2", "cup 1", "apple 1"]
        assert page["status"].text.startswith("4 boxes in ")
        left, top, right, bottom = page.rect(page["picture"])
        for box in boxes:
            x0, y0, x1, y1 = page.rect(box)
            assert left <= x0 < x1 <= right
            assert top <= y0 < y1 <= bottom

        page.choose("query")
        page["question"].send_keys("How many bananas are there?")
        page.run()

        assert page.errors() == {}
        assert page["text"].text.strip(".") in ("2", "two", "Two")
