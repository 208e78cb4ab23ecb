"""Traced networks: operators of modules and of ONNX files as layers."""
