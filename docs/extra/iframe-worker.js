// Browsers start no worker from a page on the disk. There, the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.document.open() // or else the empty page of the frame may still be on its way, and replace what is written
      inner.document.write("<body></body>")
      inner.document.close()
      inner.postMessage = data => this.answer(data)
      const script = inner.document.createElement("script")
      script.src = url
      this.loaded = new Promise((resolve, reject) => {
        script.onload = resolve
        script.onerror = () => reject(new Error(`Expected a script at ${url}, but found none.`))
      })
      inner.document.body.append(script)
    }

    answer(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }

    postMessage(data) {
      const inner = this.frame.contentWindow
      this.loaded.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
