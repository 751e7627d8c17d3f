"""`doctor`: one screen on whether this machine can run what is asked, each line with what to do about it."""
