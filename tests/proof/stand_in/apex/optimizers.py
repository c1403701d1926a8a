"""Nothing of it is used in FP32."""
