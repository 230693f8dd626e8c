"""What the rewriter and the compiler check their own work with; everything above them may use it too.

feed (what a model is judged with) from inputs, kinds, values and operands; verify (do two models agree?) with differences
(of two arrays), spread and bisect (where do they part?); origins (which nodes became which); flops.
"""
