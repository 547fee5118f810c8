"""Analysis -> findings: what costs time, the evidence, the change to make, and what it will bring. Pure."""
