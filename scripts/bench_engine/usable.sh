# For bench-engine.sh: builds llama.cpp without AMX where it crashes on a processor that has AMX.
#
# The caller defines build_llama, which builds it with CMAKE_ARGS, and try_llama, which runs it once and exits with `crashed`
# where a signal ended it.

# As CRASHED in compare.py.
crashed=3

has_amx() {
  grep -q amx_tile /proc/cpuinfo
}

# Tries llama.cpp, and tries it again without AMX where it crashed. Fails where it does not run after that. The caller's own
# CMAKE_ARGS are not overridden.
make_usable() {
  local code=0 flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
  try_llama || code=$?
  if [ "$code" = "$crashed" ] && [ -z "${CMAKE_ARGS:-}" ] && has_amx; then
    echo "llama.cpp crashes on this processor, which has AMX: building it without AMX" >&2
    CMAKE_ARGS="-DCMAKE_C_FLAGS='$flags' -DCMAKE_CXX_FLAGS='$flags'" build_llama
    code=0
    try_llama || code=$?
  fi
  [ "$code" = 0 ] || fail "llama.cpp does not run here: build it for this processor with CMAKE_ARGS and another BATON_LLAMA_VENV"
}
