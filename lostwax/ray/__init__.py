"""Ray: `.pt2`, `.pte` and `.onnx` files at work on a cluster. Ray itself is imported when it is
first needed: `pip install 'lostwax[ray]'`.
"""
