"""Skills: what can be asked, each as a way to build a request and a way to read the tokens that answer it."""
