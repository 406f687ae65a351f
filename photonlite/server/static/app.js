// The page: what is chosen, asked and shown.
import { address, ApiError, ask, headersFor } from "./api.js";
import { wireCamera } from "./camera.js";
import { wireCode, writeCode } from "./code.js";
import { $, clearErrors, complain, make, tabs } from "./dom.js";
import { filtered, minScore, wireFound } from "./found.js";
import { readPicture, wireSources } from "./image.js";
import { Reference } from "./reference.js";
import * as result from "./result.js";

const WITH_PLACES = ["point", "segment", "query"];

const state = { picture: null, running: null, answer: null, mode: "picture", turn: 0 };
const chosen = (name) => document.querySelector(`input[name=${name}]:checked`).value;
const reference = new Reference($("picture-frame"), $("picture-overlay"), result.say, showReference);
const camera = wireCamera({ task, key: () => $("key").value, onKey: askForKey });

// ---- the question ----

/** What is asked, without the image: {skill, fields}; null where words are missing, and the page says so. */
function task({ complaining = true } = {}) {
  const skill = chosen("skill");
  const adapter = state.mode === "picture" && $("adapter").value ? { adapter: $("adapter").value } : {};
  if (skill === "caption") return { skill, fields: { length: chosen("length"), ...adapter } };
  const name = skill === "query" ? "question" : "object";
  const words = skill === "query" ? $(name).value.trim() : names();
  if (!words.length) {
    if (complaining) complain(`${name}-error`, name === "question" ? "Write a question." : "Name what to look for.");
    return null;
  }
  const fields = { [name]: words, ...adapter };
  if (state.mode === "picture") {
    if (skill === "query" && $("reasoning").checked) fields.reasoning = true;
    if (reference.list.length) fields.spatial_refs = reference.list;
  }
  return { skill, fields };
}

/** The names to look for, each once: one as text, several as a list. */
function names() {
  const all = new Set($("object").value.split(",").map((name) => name.trim()));
  all.delete("");
  return all.size > 1 ? [...all] : [...all].join();
}

function showSkill() {
  const skill = chosen("skill");
  const live = state.mode === "camera";
  for (const field of document.querySelectorAll("[data-for]")) {
    field.hidden = !field.dataset.for.split(" ").includes(skill) || (live && "still" in field.dataset);
  }
  $("reasoning").parentElement.hidden = live;
  $("adapter-field").hidden = live || $("adapter").options.length < 2;
  reference.enable(!live && WITH_PLACES.includes(skill));
  showReference();
  showCode();
  camera.retask();
}

function showReference() {
  const value = reference.value;
  $("reference-chip").hidden = !value;
  $("reference-hint").hidden = Boolean(value);
  if (value) {
    const words = value.length === 2 ? "At" : "In";
    $("reference-chip").replaceChildren(`${words} ${value.map((part) => part.toFixed(2)).join(", ")} `, make("b", {}, "×"));
    $("reference-chip").setAttribute("aria-label", `Clear the place ${value.join(", ")}`);
  }
  showCode();
}

// ---- images ----

/** Shows an image; words are suggested for it where nobody has written any. */
async function take(blob, name, words) {
  drop();
  clearErrors();
  const turn = ++state.turn;
  let picture;
  try {
    picture = await readPicture(blob, name);
  } catch (error) {
    complain("picture-error", error.message);
    return;
  }
  if (turn !== state.turn) return; // a later one was quicker
  if (state.picture) URL.revokeObjectURL(state.picture.url);
  state.picture = picture;
  reference.set(null);
  const { width, height } = picture;
  const frame = $("picture-frame");
  frame.style.setProperty("--ratio", width / height);
  $("picture").src = picture.url;
  $("picture").alt = name;
  frame.hidden = $("picture-bar").hidden = false;
  $("empty").hidden = true;
  $("picture-name").textContent = name;
  const scaled = picture.sentSize[0] === width ? "" : `, sent as ${picture.sentSize.join(" × ")}`;
  $("picture-size").textContent = `${width} × ${height}${scaled}`;
  if (words && (!$("object").value || $("object").dataset.suggested)) {
    $("object").value = words;
    $("object").dataset.suggested = "yes";
  }
  showCode();
}

// ---- asking ----

async function run() {
  clearErrors();
  const asked = task();
  if (!asked) return;
  if (!state.picture) {
    complain("picture-error", "Choose an image first.");
    return;
  }
  const abort = new AbortController();
  state.running = abort;
  clearResult();
  $("run").textContent = "Stop";
  result.begin();
  try {
    const fields = { ...asked.fields, ...(result.isText(asked.skill) && { stream: true }) };
    const onEvent = (event) => abort.signal.aborted || result.hear(event);
    const { answer, elapsed } = await ask(asked.skill, state.picture.sent, fields, {
      key: $("key").value,
      signal: abort.signal,
      onEvent,
    });
    if (abort.signal.aborted) return;
    state.answer = result.show(asked, answer, elapsed, [state.picture.width, state.picture.height]);
    showCode();
  } catch (error) {
    if (!abort.signal.aborted) fail(error, asked.skill);
  } finally {
    if (state.running === abort) rest(abort);
  }
}

function rest(ended) {
  state.running = null;
  result.end();
  if (state.mode === "picture") $("run").textContent = "Run";
  if (ended.signal.aborted) result.say("Stopped.");
}

function stop() {
  state.running?.abort();
}

/** Stops without a word, because something else begins. */
function drop() {
  stop();
  if (state.running) rest(state.running);
  clearResult();
}

const PLACES = {
  image_too_large: "picture-error",
  invalid_image: "picture-error",
  invalid_image_url: "picture-error",
  invalid_spatial_refs: "reference-error",
  unsupported_skill: "skill-error",
};

/** Shows an error beside what caused it. */
function fail(error, skill) {
  result.clear();
  if (!(error instanceof ApiError)) return complain("run-error", error.message);
  let place = PLACES[error.code] || "run-error";
  if ([413, 415].includes(error.status)) place = "picture-error";
  if (["invalid_prompt", "invalid_field"].includes(error.code)) place = skill === "query" ? "question-error" : "object-error";
  if (error.status === 401) askForKey(error.message);
  else complain(place, error.message);
  showReady();
}

function clearResult() {
  state.answer = null;
  result.clear();
  showCode();
}

// ---- code ----

function showCode() {
  const asked = task({ complaining: false });
  const there = state.mode === "picture" && state.picture && asked;
  const searches = asked && "object" in asked.fields;
  writeCode(
    there && {
      skill: asked.skill,
      fields: { ...asked.fields, ...(searches && minScore() && { min_score: minScore() }) },
      url: address(`v1/${asked.skill}`),
      file: state.picture.name,
      withKey: Boolean($("key").value),
      answer: state.answer && filtered(state.answer),
    },
  );
}

// ---- the frame around ----

function askForKey(message) {
  toggleKey(true);
  complain("key-error", message);
}

function toggleKey(open) {
  $("key-panel").hidden = !open;
  $("key-toggle").setAttribute("aria-expanded", String(open));
  $("key-toggle").classList.toggle("set", Boolean($("key").value));
  if (open) $("key").focus();
}

async function showReady() {
  const response = await fetch(address("ready"), { headers: headersFor($("key").value) }).catch(() => null);
  $("ready").className = `ready ${response?.ok ? "yes" : "no"}`;
  $("ready").textContent = response?.ok ? "Ready" : response ? "Not ready" : "Offline";
}

/** Offers the adapters that the server has loaded, where there are any. */
async function showAdapters() {
  const response = await fetch(address("v1/adapters"), { headers: headersFor($("key").value) }).catch(() => null);
  if (!response?.ok) return;
  const { data } = await response.json();
  const before = $("adapter").value;
  const offered = data.map(({ name }) => make("option", { value: name }, name));
  $("adapter").replaceChildren(make("option", { value: "" }, "None"), ...offered);
  $("adapter").value = data.some(({ name }) => name === before) ? before : "";
  showSkill();
}

function selectMode(tab) {
  state.mode = tab.id === "tab-camera" ? "camera" : "picture";
  $("view-picture").hidden = state.mode === "camera";
  $("view-camera").hidden = state.mode === "picture";
  drop();
  clearErrors();
  camera.stop();
  $("run").textContent = state.mode === "camera" ? "Start camera" : "Run";
  showSkill();
}

function wire() {
  tabs($("tabs"), selectMode);
  wireCode();
  wireFound(() => {
    if (state.answer) result.sayFound();
    showCode();
  });
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (state.mode === "camera") camera.toggle();
    else if (state.running) stop();
    else run();
  });
  $("skills").addEventListener("change", () => {
    drop();
    clearErrors();
    showSkill();
  });
  $("ask").addEventListener("input", (event) => {
    if (event.target.id === "object") delete event.target.dataset.suggested;
    showCode();
    camera.retask();
  });
  $("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("ask").requestSubmit();
  });
  $("reference-chip").addEventListener("click", () => reference.set(null));
  wireKey();
  wireSources({ take, fail: (message) => complain("picture-error", message), active: () => state.mode === "picture" });
}

function wireKey() {
  $("key").value = sessionStorage.getItem("photonlite-key") || "";
  $("key").addEventListener("input", () => {
    sessionStorage.setItem("photonlite-key", $("key").value);
    showCode();
  });
  $("key-panel").addEventListener("submit", (event) => {
    event.preventDefault();
    clearErrors();
    toggleKey(false);
    $("key-toggle").focus();
    showAdapters();
  });
  $("key-toggle").addEventListener("click", () => toggleKey($("key-panel").hidden));
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.running) stop();
});
wire();
showSkill();
showReady();
showAdapters();
