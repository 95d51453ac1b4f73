"""Federated algorithms: slots and modifiers that are put together by configuration, one small file
each.
"""
