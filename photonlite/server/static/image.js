// Images from files, a camera, the clipboard, a drop or the examples.
import { $ } from "./dom.js";

// The model looks at less than this; a phone's photograph need not travel whole.
const LARGEST_SIDE = 2048;

/**
 * Reads an image so that it can be shown and sent.
 * @returns {Promise<{name, url, width, height, sent: Blob, sentSize: [number, number]}>}
 * @throws {Error} The browser cannot show it.
 */
export async function readPicture(blob, name) {
  const url = URL.createObjectURL(blob);
  const image = new Image();
  image.src = url;
  try {
    await image.decode();
  } catch {
    URL.revokeObjectURL(url);
    throw new Error(`${name} is not an image that this browser can show. JPEG, PNG and WebP are.`);
  }
  const { naturalWidth: width, naturalHeight: height } = image;
  const scale = LARGEST_SIDE / Math.max(width, height);
  const picture = { name, url, width, height, sent: blob, sentSize: [width, height] };
  if (scale < 1) {
    picture.sentSize = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
    picture.sent = await scaled(image, picture.sentSize);
  }
  return picture;
}

function scaled(image, [width, height]) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  canvas.getContext("2d").drawImage(image, 0, 0, width, height);
  return new Promise((resolve, reject) => {
    const done = (blob) => (blob ? resolve(blob) : reject(new Error("The image is too large for this browser.")));
    canvas.toBlob(done, "image/jpeg", 0.92);
  });
}

/** The first image of a drop or a paste, or the first file if none says that it is one. */
function pictureIn(transfer) {
  const files = [...(transfer?.files || [])];
  return files.find((file) => file.type.startsWith("image/")) || files[0];
}

/**
 * Makes every way to hand in an image work.
 * @param {{take: (blob, name, words?) => void, fail: (message) => void, active: () => boolean}} page
 */
export function wireSources({ take, fail, active }) {
  for (const [attribute, input] of [["choose", "file"], ["photograph", "photo"]]) {
    for (const button of document.querySelectorAll(`[data-${attribute}]`)) {
      button.addEventListener("click", () => $(input).click());
    }
    $(input).addEventListener("change", (event) => {
      const [file] = event.target.files;
      event.target.value = ""; // the same file can be chosen again
      if (file) take(file, file.name);
    });
  }
  for (const button of document.querySelectorAll("[data-example]")) {
    const { example, words } = button.dataset;
    button.addEventListener("click", async () => {
      const name = `${example}.webp`;
      const response = await fetch(`static/examples/${name}`).catch(() => null);
      if (response?.ok) take(await response.blob(), name, words);
      else fail("The example cannot be loaded. Check that the server runs.");
    });
  }
  wireTransfers(take, active);
}

function wireTransfers(take, active) {
  const from = (event, transfer) => {
    const file = pictureIn(transfer);
    if (!file || !active()) return;
    event.preventDefault();
    take(file, file.name || "image.png");
  };
  document.addEventListener("paste", (event) => from(event, event.clipboardData));
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    $("drop").hidden = !active() || !event.dataTransfer.types.includes("Files");
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || ($("drop").hidden = true));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").hidden = true;
    from(event, event.dataTransfer);
  });
}
