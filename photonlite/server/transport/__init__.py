"""Between the socket and the routes: connections, middleware, logs, disconnects, fetched images."""
