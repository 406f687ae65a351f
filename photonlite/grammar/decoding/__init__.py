"""The grammars that the engine steps through, token by token."""
