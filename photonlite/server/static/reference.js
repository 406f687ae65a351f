// A place on the image that the words are about: a point by click or Enter, a box by dragging.
import { make, percent } from "./dom.js";

const DRAG = 6; // pixels; a finger is never quite still
const clamp = (value) => Math.min(1, Math.max(0, value));
const rounded = (values) => values.map((value) => Number(value.toFixed(4)));

export class Reference {
  /**
   * @param {HTMLElement} frame Holds the image; takes pointer and keys.
   * @param {HTMLElement} overlay Where the place is drawn.
   * @param {(text: string) => void} say Tells a screen reader.
   * @param {() => void} onChange Called with every new value.
   */
  constructor(frame, overlay, say, onChange) {
    Object.assign(this, { frame, overlay, say, onChange, value: null, cursor: [0.5, 0.5], on: false });
    frame.addEventListener("pointerdown", (event) => this.#press(event));
    frame.addEventListener("pointermove", (event) => this.#move(event));
    frame.addEventListener("pointerup", (event) => this.#release(event));
    frame.addEventListener("pointercancel", () => (this.start = null));
    frame.addEventListener("keydown", (event) => this.#key(event));
    frame.addEventListener("blur", () => this.#drawCursor(false));
  }

  /** Whether the chosen skill knows places. */
  enable(on) {
    this.on = on;
    this.frame.classList.toggle("places", on);
    if (on) {
      this.frame.tabIndex = 0;
      this.frame.setAttribute("role", "application");
      this.frame.setAttribute("aria-label", "Image. Arrow keys move a cursor, Enter marks the place, Escape clears it.");
    } else {
      for (const name of ["tabindex", "role", "aria-label"]) this.frame.removeAttribute(name);
    }
    this.#draw();
  }

  /** The references to send. */
  get list() {
    return this.on && this.value ? [this.value] : [];
  }

  set(value) {
    this.value = value && rounded(value);
    this.#draw();
    this.onChange();
  }

  #at(event) {
    const box = this.overlay.getBoundingClientRect();
    return [clamp((event.clientX - box.left) / box.width), clamp((event.clientY - box.top) / box.height)];
  }

  #press(event) {
    if (!this.on || event.button !== 0) return;
    this.start = { at: this.#at(event), x: event.clientX, y: event.clientY, dragged: false };
    this.frame.setPointerCapture(event.pointerId);
  }

  #move(event) {
    if (!this.start) return;
    this.start.dragged ||= Math.hypot(event.clientX - this.start.x, event.clientY - this.start.y) > DRAG;
    if (this.start.dragged) this.#draw(this.#box(event));
  }

  #release(event) {
    if (!this.start) return;
    const value = this.start.dragged ? this.#box(event) : this.#at(event);
    this.start = null;
    this.set(value);
  }

  #box(event) {
    const [[ax, ay], [bx, by]] = [this.start.at, this.#at(event)];
    return [Math.min(ax, bx), Math.min(ay, by), Math.max(ax, bx), Math.max(ay, by)];
  }

  #key(event) {
    if (!this.on) return;
    const step = event.shiftKey ? 0.1 : 0.02;
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] || [0, 0];
    if (dx || dy) {
      this.cursor = [clamp(this.cursor[0] + dx * step), clamp(this.cursor[1] + dy * step)];
      this.#drawCursor(true);
      this.say(this.cursor.map((part) => `${Math.round(100 * part)} %`).join(" across, ") + " down");
    } else if (event.key === "Enter") {
      this.set(this.cursor);
    } else if (event.key === "Escape") {
      this.set(null);
    } else return;
    event.preventDefault();
  }

  #draw(value = this.value) {
    this.overlay.querySelector(".reference")?.remove();
    if (!this.on || !value) return;
    const [x0, y0, x1 = x0, y1 = y0] = value;
    const mark = make("div", { class: value.length === 2 ? "reference dot" : "reference box" });
    Object.assign(mark.style, { left: percent(x0), top: percent(y0), width: percent(x1 - x0), height: percent(y1 - y0) });
    this.overlay.append(mark);
  }

  #drawCursor(shown) {
    this.overlay.querySelector(".cursor")?.remove();
    if (!shown) return;
    const mark = make("div", { class: "cursor" });
    Object.assign(mark.style, { left: percent(this.cursor[0]), top: percent(this.cursor[1]) });
    this.overlay.append(mark);
  }
}
