// The camera tab: frames go to the real-time socket, results are drawn over the video.
import { $, clearErrors, complain } from "./dom.js";
import { clearFound, showFound } from "./found.js";
import { RealtimeSocket } from "./realtime.js";
import { say, showText } from "./result.js";

const WIDTH = 640; // of the frames that are sent; the model looks at no more
const QUALITY = 0.8;
const TYPING = 300; // milliseconds
const KEPT = 20; // latest results that the figures are about

/**
 * @param {{task: () => object|null, key: () => string, onKey: (message: string) => void}} page
 * @returns {{toggle: () => void, stop: () => void, retask: () => void}}
 */
export function wireCamera(page) {
  const video = $("video");
  const canvas = document.createElement("canvas");
  let typing; // runs out when nobody has typed for a while
  let live = null; // {stream, socket, ends, latencies, timer} while the camera is on

  async function start() {
    clearErrors();
    const task = page.task();
    if (!task) return;
    if (!navigator.mediaDevices) return fail("The browser gives the camera to pages from https or localhost alone.");
    const run = (live = { ends: [], latencies: [], skipped: 0 });
    $("run").textContent = "Stop camera";
    try {
      const wanted = { facingMode: "environment", width: { ideal: WIDTH }, height: { ideal: (WIDTH * 3) / 4 } };
      run.stream = await navigator.mediaDevices.getUserMedia({ video: wanted });
      video.srcObject = run.stream;
      await video.play();
    } catch (error) {
      return live === run && fail(WHY[error.name] || `The camera cannot be used: ${error.message}`);
    } finally {
      if (live !== run) release(run); // stopped meanwhile
    }
    if (live === run) connect(run, task);
  }

  /** Follows the video's size, which changes when a phone is turned. */
  function fit() {
    const scale = Math.min(1, WIDTH / video.videoWidth);
    canvas.width = Math.round(video.videoWidth * scale);
    canvas.height = Math.round(video.videoHeight * scale);
    $("camera-frame").style.setProperty("--ratio", video.videoWidth / video.videoHeight);
  }

  function connect(run, task) {
    fit();
    $("camera-idle").hidden = true;
    const handlers = {
      onTask: (task) => begin(run, task),
      onResult: (message) => live === run && show(run, message),
      onError: (message) => live === run && object(run, message),
      onClose: (message, unauthorized) => live === run && fail(message, unauthorized),
    };
    try {
      run.socket = new RealtimeSocket(page.key(), task, handlers);
    } catch {
      return fail("The key has characters that a WebSocket cannot carry.", true);
    }
    run.timer = setInterval(() => measure(run), 250);
    say("Live");
    $("text").setAttribute("aria-live", "off"); // nobody can listen to thirty texts a second
  }

  function begin(run, { object = [] }) {
    clearErrors();
    run.names = [object].flat();
    run.ends = [];
    run.latencies = [];
    if (!run.begun) next(run);
    run.begun = true;
  }

  /** Shows what was wrong with a task until there is another, or with a frame until one is answered. */
  function object(run, { frame, error }) {
    const place = error.code === "unsupported_skill" ? "skill-error" : "camera-error";
    if ($(place).textContent !== error.message) complain(place, error.message);
    run.frameFailed = frame !== null;
  }

  /** Sends frame after frame for as long as the camera is on. */
  function next(run) {
    if (live !== run) return;
    const send = () => {
      if (live !== run) return;
      next(run);
      if (document.hidden) return;
      if (run.encoding || !run.socket.free) {
        run.skipped += 1;
        return;
      }
      run.encoding = true;
      const taken = performance.now();
      canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(
        (blob) => {
          run.encoding = false;
          if (blob && live === run) run.socket.send(blob, taken);
        },
        "image/jpeg",
        QUALITY,
      );
    };
    if (video.requestVideoFrameCallback) video.requestVideoFrameCallback(send);
    else requestAnimationFrame(send);
  }

  function show(run, { result, taken }) {
    const now = performance.now();
    run.ends = [...run.ends, now].slice(-KEPT);
    run.latencies = [...run.latencies, now - taken].slice(-KEPT);
    if (run.frameFailed) clearErrors();
    run.frameFailed = false;
    $("result").hidden = false;
    showText(result.answer ?? result.caption);
    if (run.names.length) showFound($("camera-overlay"), result, run.names);
    else clearFound();
  }

  function measure(run) {
    const recent = run.ends.filter((end) => end > performance.now() - 2000);
    const span = (recent.at(-1) - recent[0]) / 1000;
    $("meter-rate").textContent = span > 0 ? ((recent.length - 1) / span).toFixed(1) : "–";
    const sorted = run.latencies.toSorted((a, b) => a - b);
    $("meter-latency").textContent = sorted.length ? Math.round(sorted[sorted.length >> 1]) : "–";
    $("meter-slowest").textContent = sorted.length ? Math.round(sorted.at(-1)) : "–";
    $("meter-drops").textContent = run.skipped + run.socket.dropped;
  }

  function release(run) {
    for (const track of run.stream?.getTracks() || []) track.stop();
    run.socket?.close();
    clearInterval(run.timer);
  }

  function stop() {
    if (!live) return;
    release(live);
    live = null;
    video.srcObject = null;
    $("camera-idle").hidden = false;
    $("run").textContent = "Start camera";
    clearFound();
    $("text").setAttribute("aria-live", "polite");
    $("text").hidden = true;
    say("");
  }

  function fail(message, unauthorized = false) {
    stop();
    if (unauthorized) page.onKey(message);
    else complain("camera-error", message);
  }

  video.addEventListener("resize", fit);
  return {
    toggle: () => (live ? stop() : start()),
    stop,
    /** Asks what is chosen now from the next frame on. */
    retask() {
      clearTimeout(typing);
      typing = setTimeout(() => {
        const task = live?.socket && page.task({ complaining: false });
        if (task) live.socket.ask(task);
      }, TYPING);
    },
  };
}

const WHY = {
  NotAllowedError: "The camera was not allowed. Allow it in the browser's settings of this page.",
  NotFoundError: "There is no camera.",
  NotReadableError: "Another program uses the camera. Close it, and start again.",
};
