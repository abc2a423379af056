"""The caches of torch's compilers: AOTAutogradCache, FxGraphCache and their generated code."""
