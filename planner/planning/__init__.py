"""From a question to a plan: candidates, costs, the search, and the decision by simulation."""
