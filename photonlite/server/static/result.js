// Shows an answer: text, what was found, times.
import { $, duration, make } from "./dom.js";
import { clearFound, showFound, summary } from "./found.js";

const STAGES = ["preprocess", "queue", "encode", "prefill", "decode"];
const BRIEF = 24; // characters of an answer that is set large

let took = 0; // milliseconds that the last answer needed

export const isText = (skill) => skill === "caption" || skill === "query";

/** Says something where screen readers hear it. */
export function say(text) {
  $("result").hidden = !text;
  $("status").textContent = text;
}

export function begin() {
  say("Working …");
  $("text").setAttribute("aria-busy", "true");
}

export function end() {
  $("text").setAttribute("aria-busy", "false");
}

export function clear() {
  say("");
  for (const part of ["text", "timings", "thoughts"]) $(part).hidden = true;
  $("text").textContent = "";
  $("text").classList.remove("brief");
  clearFound();
}

/** Takes one event of a stream. */
export function hear(event) {
  if (event.reasoning) showReasoning(event.reasoning);
  if (!event.chunk) return;
  $("text").hidden = false;
  $("text").append(event.chunk);
}

/** Shows a whole text; undefined hides it. */
export function showText(text) {
  $("text").hidden = text === undefined;
  if ($("text").textContent !== text) $("text").textContent = text ?? "";
  $("text").classList.toggle("brief", (text ?? "").length <= BRIEF);
}

function showReasoning(reasoning) {
  $("thoughts").hidden = false;
  $("reasoning-text").textContent = reasoning.text ?? reasoning;
}

/** Shows an answer with its times; gives it without what belongs to its transport. */
export function show(asked, answer, elapsed, size) {
  const { skill, fields } = asked;
  if (isText(skill)) {
    const text = answer.answer ?? answer.caption ?? $("text").textContent;
    showText(text);
    if (answer.reasoning) showReasoning(answer.reasoning);
    answer = { ...answer, [skill === "query" ? "answer" : "caption"]: text };
    for (const key of ["chunk", "completed"]) delete answer[key];
    say(`Answered in ${duration(elapsed)}${answer.finish_reason === "length" ? ", cut off at the limit of tokens" : ""}`);
  } else {
    const names = [fields.object].flat();
    showFound($("picture-overlay"), answer, names, size);
    took = elapsed;
    sayFound();
  }
  showTimes(answer.metrics || {}, elapsed);
  return answer;
}

/** Says how much was found, and how much of it the score leaves. */
export function sayFound() {
  say(`${summary()} in ${duration(took)}`);
}

function showTimes(metrics, elapsed) {
  const parts = STAGES.map((name) => [name, 1000 * (metrics[`${name}_s`] || 0)]);
  const inside = parts.reduce((sum, [, ms]) => sum + ms, 0);
  parts.push(["network", Math.max(0, elapsed - inside)]);
  $("times-note").hidden = inside <= elapsed;
  $("strip").replaceChildren(
    ...parts.map(([name, ms]) => {
      const bar = make("i", { class: name });
      bar.style.flexGrow = ms;
      return bar;
    }),
  );
  const named = (name) => name[0].toUpperCase() + name.slice(1);
  $("times").replaceChildren(
    ...parts.map(([name, ms]) =>
      make("div", { class: name }, make("dt", {}, named(name)), make("dd", {}, duration(ms))),
    ),
  );
  $("timings").hidden = false;
}
