"""Two analyses -> what changed between them, and whether it is more than noise."""
