// Small helpers: elements, messages, tabs.

export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The field that a message belongs to is marked as invalid for as long as the message stands.
const FIELDS = { "object-error": "object", "question-error": "question", "key-error": "key" };

export function complain(id, message) {
  const place = $(id);
  place.textContent = message;
  place.hidden = false;
  const field = FIELDS[id] && $(FIELDS[id]);
  if (field) {
    field.setAttribute("aria-invalid", "true");
    field.focus();
  }
}

export function clearErrors() {
  for (const place of document.querySelectorAll(".error:not([hidden])")) {
    place.hidden = true;
    place.textContent = "";
  }
  for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

/** Makes a row of buttons behave as tabs: click, arrow keys, Home and End. */
export function tabs(list, onSelect) {
  const buttons = [...list.querySelectorAll("[role=tab]")];
  const select = (button) => {
    for (const other of buttons) {
      other.setAttribute("aria-selected", String(other === button));
      other.tabIndex = other === button ? 0 : -1;
    }
    onSelect(button);
  };
  for (const button of buttons) button.addEventListener("click", () => select(button));
  list.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const button = buttons[(to + buttons.length) % buttons.length];
    button.focus();
    select(button);
  });
}

export const percent = (part) => `${(100 * part).toFixed(3)}%`;

export function duration(ms) {
  if (!ms) return "0 ms";
  if (ms >= 999.5) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms < 9.95 ? ms.toFixed(1) : Math.round(ms)} ms`;
}
