"""How good the answers of the search engine are on problems of the contest, and how soon."""
