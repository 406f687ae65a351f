// Talks to the API: one request, whole or as server-sent events.

export class ApiError extends Error {
  constructor(message, status = 0, type = "", code = "") {
    super(message);
    Object.assign(this, { status, type, code });
  }
}

/** The address of a route, wherever the page itself is mounted. */
export const address = (path) => new URL(path, document.baseURI).href;

export function headersFor(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/**
 * Asks a skill.
 * @param {string} skill Name of the route.
 * @param {Blob} image The image, as a file.
 * @param {object} fields What the skill takes beside it.
 * @param {{key: string, signal: AbortSignal, onEvent: (event: object) => void}} options onEvent hears a stream's events.
 * @returns {Promise<{answer: object, elapsed: number}>} elapsed is in milliseconds, from sending to the last byte.
 */
export async function ask(skill, image, fields, { key, signal, onEvent }) {
  const started = performance.now();
  let response;
  try {
    response = await fetch(address(`v1/${skill}`), {
      method: "POST",
      headers: headersFor(key),
      body: form(image, fields),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Check that it runs, and try again.");
  }
  if (!response.ok) throw await failureOf(response);
  const streamed = (response.headers.get("Content-Type") || "").startsWith("text/event-stream");
  const answer = streamed ? await readEvents(response, onEvent) : await response.json();
  return { answer, elapsed: performance.now() - started };
}

function form(image, fields) {
  const data = new FormData();
  data.append("image", image, "image");
  for (const [name, text] of formFields(fields)) data.append(name, text);
  return data;
}

/** Fields of a form: a list of texts is a field for each, and what else is no text goes as JSON. */
export function formFields(fields) {
  return Object.entries(fields).flatMap(([name, value]) => {
    const texts = Array.isArray(value) && value.every((one) => typeof one === "string") ? value : [value];
    return texts.map((one) => [name, typeof one === "string" ? one : JSON.stringify(one)]);
  });
}

export async function failureOf(response) {
  let error = {};
  try {
    error = (await response.json()).error || {};
  } catch {
    // A proxy in between answers with a page of its own.
  }
  const wait = response.headers.get("Retry-After");
  let message = error.message || `The server answered ${response.status} ${response.statusText}.`;
  if (wait && /^\d+$/.test(wait)) message += ` Try again in ${wait} s.`;
  return new ApiError(message, response.status, error.type, error.code);
}

/** Reads a stream to its end and gives what its events said beside the text. */
async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const answer = {};
  let rest = "";
  let completed = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (!data || data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, 0, event.error.type, event.error.code);
      completed ||= event.completed === true;
      Object.assign(answer, event);
      onEvent(event);
    }
  }
  if (!completed) throw new ApiError("The answer broke off before its end. Try again.");
  return answer;
}
