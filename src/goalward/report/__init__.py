"""The report: runs collected from disk, their statistics, figures, tables and one page."""
