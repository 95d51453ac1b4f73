"""What everything else rests on: flat parameters, derived randomness, errors, files that are whole
or not there.
"""
