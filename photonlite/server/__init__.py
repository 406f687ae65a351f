"""The server: one model behind HTTP, for the clients of Moondream and of OpenAI, and for robots over a WebSocket.

```
client ──> app ──> Ingress.admit ──> body, image ──> Call ──> turn ──> VisionModel
                   key, drain,       bytes, pixels     limits   ask_model
                   rate, places
```
"""
