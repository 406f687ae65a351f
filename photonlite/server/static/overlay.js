// Draws results over an image or a video.
import { make, percent } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
// Pixels of width for each name. Where they are fewer, names would hide the image: they come with hover and focus.
const ROOM = 60;

/** Objects, points and segments in one form: {label, score, box: [x0, y0, x1, y1], path?, polygon?}. */
export function itemsOf(answer) {
  const corners = (box) => [box.x_min, box.y_min, box.x_max, box.y_max];
  const common = ({ label, score }) => ({ label, score });
  return [
    ...(answer.objects || []).map((object) => ({ ...common(object), box: corners(object) })),
    ...(answer.points || []).map((point) => ({ ...common(point), box: [point.x, point.y, point.x, point.y] })),
    ...(answer.segments || []).map((segment) => ({
      ...common(segment),
      box: corners(segment.bbox),
      path: segment.path,
      polygon: segment.polygon,
    })),
  ];
}

export const isPoint = ({ box, path }) => !path && box[0] === box[2] && box[1] === box[3];
export const withScore = ({ score }) => (score === undefined ? "" : score.toFixed(2));

function shape(item) {
  const [x0, y0, x1, y1] = item.box;
  const mark = make("div", { class: isPoint(item) ? "mark dot" : item.path || item.polygon ? "mark" : "mark box" });
  mark.classList.add(item.hue);
  mark.style.left = percent(x0);
  mark.style.top = percent(y0);
  mark.style.width = percent(x1 - x0);
  mark.style.height = percent(y1 - y0);
  if (!isPoint(item)) mark.append(outline(item));
  mark.append(make("span", { class: y0 < 0.08 ? "tag below" : "tag" }, `${item.label ?? ""} ${withScore(item)}`.trim()));
  return mark;
}

function outline(item) {
  if (!item.path && !item.polygon) return "";
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 1 1");
  svg.setAttribute("preserveAspectRatio", "none");
  for (const kind of ["halo", "line"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", kind);
    path.setAttribute("d", item.path || pathOf(item));
    svg.append(path);
  }
  return svg;
}

/** A polygon in the image as a path in the box, which is what a segment's own path is. */
function pathOf({ polygon, box: [x0, y0, x1, y1] }) {
  const inside = polygon.map(([x, y]) => `${(x - x0) / (x1 - x0 || 1)} ${(y - y0) / (y1 - y0 || 1)}`);
  return `M${inside.join("L")}Z`;
}

/** Draws items, each in the colour of its `hue`; gives their marks in the same order. */
export function draw(overlay, items) {
  const marks = items.map(shape);
  overlay.classList.toggle("crowded", items.length * ROOM > overlay.clientWidth);
  overlay.replaceChildren(...marks, ...overlay.querySelectorAll(".reference, .cursor"));
  keepInside(overlay, marks);
  return marks;
}

/** Moves names that would leave the image sideways. */
function keepInside(overlay, marks) {
  const { left, right } = overlay.getBoundingClientRect();
  const tags = marks.map((mark) => mark.querySelector(".tag"));
  const shifts = tags.map((tag) => {
    const box = tag.getBoundingClientRect();
    return Math.max(left - box.left, 0) || Math.min(right - box.right, 0);
  });
  tags.forEach((tag, index) => {
    if (shifts[index]) tag.style.translate = `${shifts[index]}px`;
  });
}
