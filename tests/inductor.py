"""Settings of AOTInductor. The C++ compiler takes nearly all of the time: half of it for what makes
the result fast."""

QUICKLY = {
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "cpp_cache_precompile_headers": False,
    "cpp.vec_isa_ok": False,
}
