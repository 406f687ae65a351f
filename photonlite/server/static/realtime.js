// The real-time socket: frames out, results in.
import { address, failureOf, headersFor } from "./api.js";

// A page cannot set headers of a WebSocket, so the key travels as a subprotocol.
const KEY = "photonlite-key.";

export class RealtimeSocket {
  /**
   * @param {string} key
   * @param {{skill: string, fields: object}} task What to ask about the frames.
   * @param {{onTask: (task) => void, onResult: ({result, taken}) => void, onError: ({frame, error}) => void,
   *   onClose: (message, unauthorized) => void}} handlers onTask says that a task was taken; onClose comes where the
   *   connection ends by itself.
   */
  constructor(key, task, handlers) {
    Object.assign(this, { key, handlers, sent: 0, taken: new Map(), dropped: 0, opened: false, closing: false });
    const url = address("v1/realtime").replace(/^http/, "ws");
    this.socket = new WebSocket(url, key ? ["photonlite", KEY + key] : []);
    this.socket.onopen = () => {
      this.opened = true;
      this.ask(task);
    };
    this.socket.onmessage = (event) => this.#hear(JSON.parse(event.data));
    this.socket.onclose = (event) => this.closing || this.#end(event);
  }

  /** Whether the last frame has left. */
  get free() {
    return this.socket.readyState === WebSocket.OPEN && this.socket.bufferedAmount === 0;
  }

  ask({ skill, fields }) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ task: skill, ...fields }));
  }

  send(blob, taken) {
    if (this.socket.readyState !== WebSocket.OPEN) return;
    this.taken.set(this.sent, taken);
    this.sent += 1;
    this.socket.send(blob);
  }

  close() {
    this.closing = true;
    this.socket.close();
  }

  #hear(message) {
    if (message.type === "task") this.handlers.onTask(message);
    if (message.type === "error") this.handlers.onError(message);
    if (message.type !== "result") return;
    const taken = this.taken.get(message.frame);
    for (const frame of this.taken.keys()) if (frame <= message.frame) this.taken.delete(frame);
    this.dropped = message.counts.dropped + message.counts.unsent;
    this.handlers.onResult({ result: message.result, taken });
  }

  async #end(event) {
    if (this.opened) return this.handlers.onClose(event.reason || "The connection has ended. Start again.");
    // The browser keeps to itself why a WebSocket was refused; the API tells.
    const asked = await fetch(address("v1/models"), { headers: headersFor(this.key) }).catch(() => null);
    const failure = asked && !asked.ok ? await failureOf(asked) : null;
    const message = failure?.message || "The server cannot be reached. Check that it runs, and try again.";
    this.handlers.onClose(message, asked?.status === 401);
  }
}
