// The request as curl or Python, the answer as JSON.
import { formFields } from "./api.js";
import { $, tabs } from "./dom.js";

const shown = { format: "curl", asked: null };

const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/**
 * Writes what is asked as code.
 * @param {{skill, fields, url, file, withKey, answer}|null} asked A key is never written: a variable stands for it.
 */
export function writeCode(asked = shown.asked) {
  shown.asked = asked;
  $("code").hidden = !asked;
  if (asked) $("code-text").textContent = { curl, python, json }[shown.format](asked);
}

export function wireCode() {
  tabs($("code-tabs"), (tab) => {
    shown.format = tab.id.slice("code-".length);
    $("code-text").setAttribute("aria-labelledby", tab.id);
    writeCode();
  });
  $("copy").addEventListener("click", copy);
}

async function copy() {
  try {
    await navigator.clipboard.writeText($("code-text").textContent);
  } catch {
    // Without https there is no clipboard for pages, but a selection can be copied.
    getSelection().selectAllChildren($("code-text"));
    document.execCommand("copy");
  }
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1600);
}

function curl({ fields, url, file, withKey }) {
  const form = formFields(fields).map(([name, text]) => `--form-string ${shell(`${name}=${text}`)}`);
  const path = file.replace(/["\\]/g, "\\$&");
  const lines = [`curl ${shell(url)}`, `--form ${shell(`image=@"${path}"`)}`, ...form];
  if (withKey) lines.splice(1, 0, `--header "Authorization: Bearer $PHOTONLITE_API_KEY"`);
  return lines.join(" \\\n  ");
}

function python({ fields, url, file, withKey }) {
  const more = Object.entries(fields).map(([name, value]) => `        ${JSON.stringify(name)}: ${literal(value)},`);
  return [
    "import base64",
    ...(withKey ? ["import os"] : []),
    "from pathlib import Path",
    "",
    "import requests",
    "",
    `image = base64.b64encode(Path(${literal(file)}).read_bytes()).decode()`,
    "answer = requests.post(",
    `    ${literal(url)},`,
    ...(withKey ? ['    headers={"Authorization": "Bearer " + os.environ["PHOTONLITE_API_KEY"]},'] : []),
    "    json={",
    '        "image_url": "data:image/jpeg;base64," + image,',
    ...more,
    "    },",
    "    timeout=60,",
    ")",
    "answer.raise_for_status()",
    "print(answer.json())",
  ].join("\n");
}

// JSON's texts, numbers and lists are Python's; its truths are not.
function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  return typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
}

function json({ answer }) {
  return answer ? JSON.stringify(answer, null, 2) : "Run it once, and its answer stands here.";
}
