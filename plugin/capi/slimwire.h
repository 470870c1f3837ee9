/* slimwire.h: what a program may tell slimwire that slimwire otherwise guesses, or does without. No
 * program needs it.
 *
 * C99 and C++; needs no library to link, no CUDA and no NCCL. The functions below look the
 * library's functions of the same names up when they are called, so a program compiled with this
 * header runs as it is where slimwire is not: each call then returns SLIMWIRE_ABSENT and did
 * nothing. (Before glibc 2.34 link with -ldl.) What was found is kept; while nothing was, every
 * call looks again, so that slimwire may come with an NCCL that is opened later.
 *
 * Other languages take the same names from the library itself: dlsym(RTLD_DEFAULT, ...) or
 * ctypes.CDLL(None) with the preload, the handle of libnccl.so.2 with the drop-in and LD_AUDIT
 * (which `slimwire run` uses where it can).
 * Arguments are plain integers, pointers and texts; every function but the last two returns a
 * status; 0 is success and a negative one an error.
 *
 * Stability: functions, their arguments and the values here keep their meaning in all later
 * versions of slimwire. New ones may come; so take a status that is not listed here for success
 * when it is positive and for an error when it is negative.
 *
 * Thread contract: any thread, any time, before the first NCCL call too. Nothing here needs another
 * rank to make the same call at the same time. Texts and arrays are copied.
 */
#ifndef SLIMWIRE_H
#define SLIMWIRE_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. Of all but SLIMWIRE_OK slimwire_last_error() tells more; where the status
 * is negative, nothing was changed. */
enum {
    SLIMWIRE_OK = 0,
    SLIMWIRE_NOTHING = 1,  /* there was nothing to do: slimwire compresses nothing here */
    SLIMWIRE_PARTIAL = 2,  /* done, but not for all */
    SLIMWIRE_ABSENT = -1,  /* slimwire is not in this process, or not in a forked child */
    SLIMWIRE_INVALID = -2, /* an argument cannot be */
    SLIMWIRE_FAILED = -3,  /* memory is short, or files or the device fail */
    SLIMWIRE_REFUSED = -4  /* the file is damaged or another job's, or calls are still running */
};

/* What slimwire_mark_phase takes. */
enum {
    SLIMWIRE_TRAINING = 0, /* also before the first mark */
    SLIMWIRE_EVALUATION = 1,
    SLIMWIRE_OTHER = 2 /* saving, loading, sampling: whatever does not train */
};

/* Internal: finds a function of the library once for each place. */
static inline void* slimwire_found_(const char* name, void** kept) {
    void* found = __atomic_load_n(kept, __ATOMIC_ACQUIRE);
    if (found == NULL) {
        void* nccl = NULL;
        found = dlsym(NULL /* RTLD_DEFAULT, which C99 hides */, name);
        /* With the drop-in, where NCCL was opened locally: by ctypes, with PyTorch's modules. */
        if (found == NULL && (nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD)) != NULL) {
            found = dlsym(nccl, name);
            (void)dlclose(nccl);
        }
        if (found == NULL) {
            (void)dlerror(); /* ours is not the program's */
        }
        __atomic_store_n(kept, found, __ATOMIC_RELEASE);
    }
    return found;
}

/* Internal: each function is typed once. The library itself declares them. */
#ifdef SLIMWIRE_DECLARATIONS_ONLY
#define SLIMWIRE_FUNCTION(type, absent, name, parameters, arguments) type name parameters;
#else
#define SLIMWIRE_FUNCTION(type, absent, name, parameters, arguments) \
    static inline type name parameters {                             \
        static void* kept = NULL;                                    \
        void* const found = slimwire_found_(#name, &kept);           \
        type(*function) parameters = NULL;                           \
        if (found == NULL) {                                         \
            return absent;                                           \
        }                                                            \
        memcpy(&function, &found, sizeof function);                  \
        return function arguments;                                   \
    }
#endif

/* Calls whose buffer lies in the `bytes` at `buffer` carry `name` from now on: in traces, in
 * reports where all calls of a kind carry one name, in log lines. A saved state
 * (slimwire_save_state) has the tensor by this name, wherever in a step its call comes, if all
 * ranks give it before its first call, and to no other tensor of calls that are alike. An earlier
 * name of memory that overlaps is forgotten. `name`: 1 to 255 printable ASCII characters without
 * quotation mark and backslash. SLIMWIRE_FAILED also where 65536 different names were given. */
SLIMWIRE_FUNCTION(int,
                  SLIMWIRE_ABSENT,
                  slimwire_name_tensor,
                  (const void* buffer, uint64_t bytes, const char* name),
                  (buffer, bytes, name))

/* Forgets the name of the memory that begins at `buffer`; call it before the memory is freed.
 * SLIMWIRE_INVALID where no named memory begins. */
SLIMWIRE_FUNCTION(int, SLIMWIRE_ABSENT, slimwire_forget_tensor, (const void* buffer), (buffer))

/* Says what parameter `index` of model `model` (any number of the program's) is called and how
 * large it is: `sizes` of its `dimensions`, outermost first, at most 8. A parameter that is told
 * again is replaced. Once all of a model's parameters are told, from index 0 on, in the order in
 * which the framework has them, slimwire gives their names to parameters that it finds in the
 * traffic with exactly these sizes; models of equal sizes but different names get none. Tell
 * them before the communicator is made that reduces gradients, the same on all ranks: ranks compare
 * then what they were told, where it differs nothing of it is used, and what is told later is not
 * used there. A saved state has such parameters by name, whatever their order. `name` as above;
 * `index` below 1048576. */
SLIMWIRE_FUNCTION(
    int,
    SLIMWIRE_ABSENT,
    slimwire_register_parameter,
    (uint32_t model, uint32_t index, const char* name, const int64_t* sizes, int dimensions),
    (model, index, name, sizes, dimensions))

/* Says that the parameter, which was registered, is one of the equal parts of a larger one that
 * groups of ranks have (tensor parallel; ranks of a group have the same, as data parallel), cut
 * along `dimension` of its sizes, the outermost 0; -1: every group has all of it. By this what is
 * owed to it (slimwire_save_state) goes to other numbers of groups: without, it begins anew there.
 * It counts for calls, too, whose memory has the parameter's name and as many elements
 * (slimwire_name_tensor). Groups are communicators of all ranks with the same place in a grid, in
 * the order of the parts. SLIMWIRE_INVALID without such a parameter or dimension. */
SLIMWIRE_FUNCTION(int,
                  SLIMWIRE_ABSENT,
                  slimwire_split_parameter,
                  (uint32_t model, uint32_t index, int dimension),
                  (model, index, dimension))

/* Forgets all parameters of the model. SLIMWIRE_INVALID where it has none. */
SLIMWIRE_FUNCTION(int, SLIMWIRE_ABSENT, slimwire_forget_model, (uint32_t model), (model))

/* An optimizer step begins here: the calls from this mark to the next belong to it. A
 * tensor's slot is then which call of its kind since the mark it is: known from the first step on,
 * whatever else comes between. Once a process marked, slimwire detects no
 * steps any more. Calls of the same operation, type, reduction and count must come in the same
 * order in every step; beyond 65536 calls after a mark places are unsure, and such calls native.
 *
 * All ranks must mark at the same point between the same NCCL calls, as NCCL itself asks of calls:
 * where one does not, ranks would disagree about what they send. Once a process, whatever number of
 * threads and communicators it has; not inside a group. `step` is the program's number of the step,
 * for traces and reports, and for SLIMWIRE_STATE, which saves every so many of them and takes up
 * what belongs to the first: then no other thread may be making NCCL calls. */
SLIMWIRE_FUNCTION(int, SLIMWIRE_ABSENT, slimwire_mark_step, (uint64_t step), (step))

/* What the program does from here on, on all ranks at the same point between the same NCCL calls.
 * Outside SLIMWIRE_TRAINING calls whose rule has error feedback are native and leave residuals and
 * places as they are; others are compressed as always. */
SLIMWIRE_FUNCTION(int, SLIMWIRE_ABSENT, slimwire_mark_phase, (int phase), (phase))

/* The learning rate from here on, of all parameters: for traces and reports, and for controllers
 * that follow it (accordion). On all ranks the same, at the same point between the same NCCL calls.
 * Finite and not negative. */
SLIMWIRE_FUNCTION(int, SLIMWIRE_ABSENT, slimwire_set_learning_rate, (double rate), (rate))

/* Gradients of the calls from here on are multiplied by `scale` (mixed precision: GradScaler's
 * get_scale(), Megatron's, DeepSpeed's). Where it changed, what error feedback owes a tensor is
 * multiplied by as much before the tensor's next call, so that it stays in the gradients' units;
 * until a scale was told twice nothing is. Under stream capture residuals stay as they are. On all
 * ranks at the same point between the same NCCL calls; not inside a group; telling the same scale
 * again costs nothing. Positive and finite. */
SLIMWIRE_FUNCTION(int, SLIMWIRE_ABSENT, slimwire_set_loss_scale, (double scale), (scale))

/* Step-ahead error feedback (rules with `step_ahead`) where parameters are never gathered, as under
 * DistributedDataParallel: moves `count` elements at `parameter`, of `type` (ncclDataType_t:
 * float16, float32, bfloat16), on `stream` (cudaStream_t; null: the default one) by what this rank
 * still owes their gradient, times the step that the rule says. Call it before the forward pass,
 * and slimwire_step_back before the optimizer's step, evaluation and saving; what was there is kept
 * in between, in as many bytes of device memory, and comes back byte for byte. Once a call for each
 * parameter. `gradient` is where the gradient lies in the buffer of its last all-reduce: .grad with
 * gradient_as_bucket_view=True. This rank's own affair: others need not do it at the same time, nor
 * at all; but no other thread may make NCCL calls meanwhile, and the communicator must live until
 * it is back. SLIMWIRE_NOTHING, and nothing moved, where no such rule has compressed the gradient
 * yet, the learning rate is not told, or SLIMWIRE_MAX_MEMORY has no room. */
SLIMWIRE_FUNCTION(int,
                  SLIMWIRE_ABSENT,
                  slimwire_step_ahead,
                  (const void* gradient, void* parameter, uint64_t count, int type, void* stream),
                  (gradient, parameter, count, type, stream))

/* Brings a parameter back that slimwire_step_ahead moved. SLIMWIRE_NOTHING where it is not moved.
 */
SLIMWIRE_FUNCTION(
    int, SLIMWIRE_ABSENT, slimwire_step_back, (void* parameter, void* stream), (parameter, stream))

/* Writes what this rank's error feedback still owes to `path`, in which %h is the host, %r the rank
 * and %p the process id; every rank needs a file of its own. Later processes of the job that load
 * it, each rank its own, go on with the bits of a job that did not end, if they mark their steps
 * and every rank saves and loads between the same steps. The file is replaced as a whole, or stays
 * as it was. Tensors are found again by name, else by their slot in the step, communicators by
 * their order; save while the communicators live. Residuals of tensors that are still told apart
 * by address cannot be found again: SLIMWIRE_PARTIAL, and the rest is saved. Estimates of calls
 * with ef21, and factors of powersgd, are of use only where all ranks saved them at the same point
 * and load them; else they begin at zero on all ranks. The same holds of how far accordion,
 * average_every, start_step, step_ahead and ramps are and of what codecs draw on all ranks alike
 * (randomk), which must be loaded before the communicator is made, too; and of weights of linear_ae
 * between ranks and of which message answers which. Not in it: what step detection learned, and
 * rows that headers of messages told: without row= the first messages are native again.
 *
 * Waits for compressed calls that still run, at most a minute; no other thread may make NCCL calls
 * meanwhile. Not inside a group, not under stream capture. */
SLIMWIRE_FUNCTION(int, SLIMWIRE_ABSENT, slimwire_save_state, (const char* path), (path))

/* Loads what slimwire_save_state wrote, at best before the first communicator is made: each tensor
 * takes its residuals at its first call from here on; those of tensors that the file lacks are
 * zero. Estimates of ef21, what calls with powersgd keep, and controllers and counts of
 * communicators that are there stay as they are. The file is checked as a whole before anything
 * changes: SLIMWIRE_REFUSED where it is damaged, of another version, or was saved by another rank,
 * number of ranks (slimwire state convert makes files for another one) or policy. */
SLIMWIRE_FUNCTION(int, SLIMWIRE_ABSENT, slimwire_load_state, (const char* path), (path))

/* The library's version, 10000 major + 100 minor + patch, or SLIMWIRE_ABSENT. */
SLIMWIRE_FUNCTION(int, SLIMWIRE_ABSENT, slimwire_version, (void), ())

/* Why this thread's last call of a function above returned what it did; empty after SLIMWIRE_OK.
 * Valid until the thread's next call. */
SLIMWIRE_FUNCTION(const char*, "slimwire is not in this process", slimwire_last_error, (void), ())

#ifdef __cplusplus
}
#endif

#endif /* SLIMWIRE_H */
