"""The OpenAPI document: every route, with a schema for every body, written by hand as data."""

from photonlite import __version__
from photonlite.server.bodies import schema_openai, schema_service, schema_skills
from photonlite.server.bodies.schema_parts import Json
from photonlite.server.config import ServerConfig

_TAGS = {
    "Skills": "Moondream's interface. Coordinates run from 0 to 1, with (0, 0) in the top-left corner of the image.",
    "Real time": "A loop over the frames of a camera.",
    "OpenAI": "What OpenAI's clients call.",
    "Service": "Health, metrics and pages.",
}


def document(config: ServerConfig) -> Json:
    """Write the document of a server.

    Args:
        config: Its limits become those of the schemas.
    """
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "moondream": {"type": "apiKey", "in": "header", "name": "X-Moondream-Auth"},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "photonlite",
            "version": __version__,
            "summary": "An image and a few words in, structured answers out.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        # Without keys nobody has to give one.
        "security": [{name: []} for name in schemes] if config.api_keys else [],
        "paths": {**schema_skills.paths(config), **schema_openai.paths(), **schema_service.paths()},
        "components": {
            "securitySchemes": schemes,
            "schemas": {
                **schema_skills.schemas(config),
                **schema_openai.schemas(config),
                **schema_service.schemas(),
            },
        },
    }
