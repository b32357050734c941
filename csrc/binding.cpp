// What Python sees of the native engine.
#include <nanobind/nanobind.h>

NB_MODULE(_native, module) {
    module.doc() = "penni's native engine";
    module.attr("version") = PENNI_VERSION;
}
