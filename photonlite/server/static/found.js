// What was found: drawn, listed, counted by name and filtered by score.
import { $, make, percent } from "./dom.js";
import { draw, isPoint, itemsOf, withScore } from "./overlay.js";

const HUES = 8; // colours of names, in style.css
const KINDS = { objects: ["box", "boxes"], points: ["point", "points"], segments: ["outline", "outlines"] };

const state = {
  overlay: null, // where the answer is drawn; null while there is none
  answer: {},
  names: [],
  size: null,
  items: [], // what is drawn, with its marks and rows
  marks: [],
  rows: [],
  pointed: null, // whether an item is what is under the pointer or has the focus
  pinned: null, // the name that was clicked
};

export const minScore = () => Number($("min-score").value);

/** The answer that a request with the `min_score` of the page has. */
export function filtered(answer) {
  const kept = { ...answer };
  for (const kind of Object.keys(KINDS)) {
    if (answer[kind]) kept[kind] = answer[kind].filter(({ score }) => score >= minScore());
  }
  if (kept.segments) {
    kept.path = kept.segments[0]?.path ?? "";
    kept.bbox = kept.segments[0]?.bbox ?? null;
  }
  return kept;
}

/** Draws, counts and lists an answer; without a size of the image it is not listed. */
export function showFound(overlay, answer, names, size) {
  Object.assign(state, { overlay, answer, size });
  if (names.join() !== state.names.join()) {
    Object.assign(state, { names, pinned: null });
    writeLegend();
  }
  $("found").hidden = Boolean(size) && !itemsOf(answer).length;
  refresh();
}

export function clearFound() {
  if (state.overlay) draw(state.overlay, []);
  Object.assign(state, { overlay: null, answer: {}, names: [], items: [], marks: [], rows: [], pointed: null });
  $("found").hidden = true;
}

/** How much is shown of what was found: "2 of 3 boxes", "No banana or cup found". */
export function summary() {
  const [kind, [one, many]] = Object.entries(KINDS).find(([name]) => state.answer[name]);
  const [shown, all] = [state.items.length, state.answer[kind].length];
  if (!all) return `No ${new Intl.ListFormat("en-GB", { type: "disjunction" }).format(state.names)} found`;
  return `${shown < all ? `${shown} of ` : ""}${all} ${all === 1 ? one : many}`;
}

function refresh() {
  $("min-score-text").textContent = minScore().toFixed(2);
  if (!state.overlay) return;
  state.items = itemsOf(filtered(state.answer)).map((item) => {
    const label = item.label ?? state.names[0];
    return { ...item, label, hue: hueOf(label) };
  });
  state.marks = draw(state.overlay, state.items);
  state.rows = state.size ? state.items.map((item, index) => row(item, index, state.size)) : [];
  $("items").replaceChildren(...state.rows);
  $("items").hidden = !state.rows.length;
  for (const count of $("legend").querySelectorAll("[data-name]")) {
    count.textContent = state.items.filter(({ label }) => label === count.dataset.name).length;
  }
  light();
}

const hueOf = (name) => `hue-${Math.max(0, state.names.indexOf(name)) % HUES}`;

/** One name needs no legend. */
function writeLegend() {
  $("legend").hidden = state.names.length < 2;
  $("legend").replaceChildren(
    ...state.names.map((name) => {
      const parts = [make("span", { class: "name" }, name), " ", make("span", { "data-name": name })];
      return make("li", {}, make("button", { type: "button", "aria-pressed": "false", class: hueOf(name) }, ...parts));
    }),
  );
}

/** Picks what is pointed at out of the image and the list, or else all of the name that was clicked. */
function light() {
  const wanted = state.pointed || (({ label }) => label === state.pinned);
  const active = state.items.map(wanted);
  state.overlay?.classList.toggle("picked", active.includes(true));
  active.forEach((on, index) => {
    state.marks[index].classList.toggle("active", on);
    state.rows[index]?.classList.toggle("active", on);
  });
}

function pin(name) {
  state.pinned = state.pinned === name ? null : name;
  for (const button of $("legend").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(nameOf(button) === state.pinned));
  }
  light();
}

const nameOf = (element) => element.closest("li")?.querySelector("[data-name]").dataset.name;

/** Lights what is under the pointer or has the focus. */
function watch(place, itemsAt) {
  const point = (wanted) => {
    state.pointed = wanted;
    light();
  };
  for (const name of ["pointerover", "focusin"]) place.addEventListener(name, ({ target }) => point(itemsAt(target)));
  for (const name of ["pointerleave", "focusout"]) place.addEventListener(name, () => point(null));
}

/** @param {() => void} onFilter Called when the slider has moved and what it leaves is drawn. */
export function wireFound(onFilter) {
  const only = (wanted) => (wanted ? (item) => item === wanted : null);
  for (const overlay of [$("picture-overlay"), $("camera-overlay")]) {
    watch(overlay, (element) => only(state.items[state.marks.indexOf(element.closest(".mark"))]));
  }
  watch($("items"), (element) => only(state.items[state.rows.indexOf(element.closest("li"))]));
  watch($("legend"), (element) => {
    const name = nameOf(element);
    return name === undefined ? null : ({ label }) => label === name;
  });
  $("legend").addEventListener("click", (event) => {
    if (event.target.closest("button")) pin(nameOf(event.target));
  });
  $("min-score").addEventListener("input", () => {
    refresh();
    onFilter();
  });
  refresh();
}

function row(item, index, [width, height]) {
  const [x0, y0, x1, y1] = item.box.map((value, axis) => Math.round(value * (axis % 2 ? height : width)));
  const place = isPoint(item) ? `${x0}, ${y0}` : `${x0}, ${y0} – ${x1}, ${y1}`;
  const meter = make("span", { class: "meter", "aria-hidden": "true" }, make("i"));
  meter.firstChild.style.width = percent(item.score ?? 0);
  const button = make(
    "button",
    { type: "button", title: "Corners in pixels of the image", class: item.hue },
    make("span", { class: "number" }, String(index + 1)),
    make("span", { class: "name" }, item.label),
    make("span", { class: "place" }, place),
    meter,
    make("span", { class: "score" }, withScore(item)),
  );
  return make("li", {}, button);
}
