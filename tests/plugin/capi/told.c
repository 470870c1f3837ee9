/* A program in C99 that tells slimwire what it knows, with the header alone: nothing of slimwire is
 * linked.
 *   told            prints what the functions return
 *   told LIBRARY    the same, looks before and after it opens the library locally */
#include <stdio.h>

#include "plugin/capi/slimwire.h"

static void tell(const char* when) {
    static const int64_t sizes[] = {4, 3};
    static float buffer[16];
    printf("%s: version %d\n", when, slimwire_version());
    printf("%s: name %d", when, slimwire_name_tensor(buffer, sizeof buffer, "layer.weight"));
    printf(" %d", slimwire_name_tensor(buffer, sizeof buffer, ""));
    printf(" '%s'\n", slimwire_last_error());
    printf("%s: forget %d", when, slimwire_forget_tensor(buffer));
    printf(" %d\n", slimwire_forget_tensor(buffer));
    printf("%s: parameter %d", when, slimwire_register_parameter(7, 0, "w", sizes, 2));
    printf(" %d", slimwire_register_parameter(7, 1, "w", sizes, -1));
    printf(" %d", slimwire_register_parameter(7, 1, "w", NULL, 1));
    printf(" %d", slimwire_register_parameter(7, 1, "scalar", NULL, 0));
    printf(" %d", slimwire_split_parameter(7, 0, 1));
    printf(" %d", slimwire_split_parameter(7, 1, 0));
    printf(" %d", slimwire_forget_model(7));
    printf(" %d\n", slimwire_forget_model(7));
    printf("%s: marks %d", when, slimwire_mark_step(UINT64_MAX));
    printf(" %d", slimwire_mark_phase(SLIMWIRE_EVALUATION));
    printf(" %d", slimwire_mark_phase(17));
    printf(" %d", slimwire_set_learning_rate(0.5));
    printf(" %d", slimwire_set_learning_rate(-0.5));
    printf(" %d", slimwire_set_loss_scale(1024));
    printf(" %d\n", slimwire_set_loss_scale(0));
    printf("%s: ahead %d", when, slimwire_step_ahead(buffer, buffer, 4, 7, NULL));
    printf(" %d\n", slimwire_step_back(buffer, NULL));
    printf("%s: state %d", when, slimwire_save_state("told.state"));
    printf(" %d\n", slimwire_load_state("told.state"));
}

int main(int argc, char** argv) {
    tell("first");
    if (argc > 1) {
        if (dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
        tell("then");
    }
    if (dlerror() != NULL) {
        fprintf(stderr, "an error of a look-up was left behind\n");
        return 3;
    }
    return 0;
}
