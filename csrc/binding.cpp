// What Python sees of the native engine.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "engine.h"
#include "isa.h"

namespace nb = nanobind;
using penni::Engine;

namespace {

using Words = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Input = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

// The weights stay where they are: the engine keeps the array that holds them alive.
struct Held {
    Bytes weights;
    Engine engine;
    Held(const Words& words, const Bytes& bytes, int threads)
        : weights(bytes), engine(words.data(), static_cast<int64_t>(words.size()), bytes.data(),
                                 static_cast<int64_t>(bytes.size()), threads) {}
};

template <typename Array>
void check_array(const Array& array, const penni::Shape& shape, int64_t batch) {
    if (static_cast<int64_t>(array.size()) != shape.size() * batch) throw nb::value_error("an array has another size than its value");
}

std::vector<double> run(Held& self, const std::vector<Input>& inputs, const std::vector<Output>& outputs, int64_t batch,
                        int64_t at_once, bool timed) {
    const penni::Plan& plan = self.engine.plan();
    if (batch < 1 || batch > (1 << 24) || at_once < 1) throw nb::value_error("the batch is empty or too large");
    if (inputs.size() != plan.inputs.size() || outputs.size() != plan.outputs.size()) {
        throw nb::value_error("the number of inputs or outputs is not the network's");
    }
    std::vector<const float*> from;
    std::vector<float*> to;
    for (size_t i = 0; i < inputs.size(); ++i) {
        check_array(inputs[i], plan.values[plan.inputs[i]].shape, batch);
        from.push_back(inputs[i].data());
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
        check_array(outputs[i], plan.values[plan.outputs[i]].shape, batch);
        to.push_back(outputs[i].data());
    }
    std::vector<double> times(timed ? plan.steps.size() : 0);
    {
        const nb::gil_scoped_release release;
        self.engine.run(from.data(), to.data(), batch, at_once, timed ? times.data() : nullptr);
    }
    return times;
}

std::vector<std::string> available() {
    std::vector<std::string> names;
    for (const penni::KernelTable* set : penni::available_kernels()) names.emplace_back(set->name);
    return names;
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "penni's native engine";
    module.attr("version") = PENNI_VERSION;
    module.def("available", &available, "The kernel sets this machine runs, fastest first.");
    module.def(
        "chosen", [] { return std::string(penni::choose_kernels().name); }, "The kernel set a new engine uses.");
    nb::class_<Held>(module, "Engine")
        .def(nb::init<const Words&, const Bytes&, int>(), nb::arg("words"), nb::arg("weights"), nb::arg("threads"))
        .def("run", &run, nb::arg("inputs"), nb::arg("outputs"), nb::arg("batch"), nb::arg("at_once"), nb::arg("timed") = false)
        .def("arena_bytes",
             [](const Held& self, int64_t batch, int64_t at_once) {
                 if (batch < 1 || at_once < 1) throw nb::value_error("the batch is empty");
                 return self.engine.arena_bytes(batch, at_once);
             })
        .def_prop_ro("images_for_cache", [](const Held& self) { return self.engine.images_for_cache(); })
        .def_prop_ro("threads", [](const Held& self) { return self.engine.threads(); })
        .def_prop_ro("isa", [](const Held& self) { return std::string(self.engine.kernels().name); });
}
