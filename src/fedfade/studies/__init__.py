"""This project's own studies: the paper claim by claim, and what channel knowledge is worth."""
