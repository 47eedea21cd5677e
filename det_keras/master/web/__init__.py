"""The web pages. They load nothing from other servers."""
