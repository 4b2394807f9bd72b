// Browsers run no worker for a page that was opened from the disk. Search then runs in a hidden frame of the same page, behind the
// same interface.
(() => {
  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      this.loaded = new Promise((resolve) => { inside.workerLoaded = resolve; });
      inside.answer = (data) => this.#heard(data);
      inside.document.open();
      inside.document.write(
        "<body><script>postMessage = (data) => answer(data);" +
        "importScripts = (...all) => all.reduce((before, src) => before.then(() => new Promise((next) => {" +
        "const script = document.createElement('script'); script.src = src; script.onload = next; document.body.append(script);" +
        "})), Promise.resolve());</script>" +
        `<script src="${url}" onload="workerLoaded()"></script></body>`
      );
      inside.document.close();
    }

    postMessage(data) {
      const copy = structuredClone(data);
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data: copy})));
    }

    terminate() { this.frame.remove(); }

    #heard(data) {
      const event = new MessageEvent("message", {data});
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
  }
  window.IFrameWorker = FrameWorker;
  if (location.protocol === "file:") window.Worker = FrameWorker;
})();
