"""Questions and answers as text: templates, rules, and what is right."""
