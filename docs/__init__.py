"""The documentation. `drawing` draws its pictures, and `site` builds it as a site."""
