/* Types of FMI 2.0 that the page on FMUs uses, so that its code is compiled and called where the standard's are not. */
#ifndef FMI2_FUNCTIONS_H
#define FMI2_FUNCTIONS_H
#include <stddef.h>
#define fmi2TypesPlatform "default"
#define fmi2Version "2.0"
typedef void *fmi2Component;
typedef void *fmi2FMUstate;
typedef unsigned int fmi2ValueReference;
typedef double fmi2Real;
typedef int fmi2Integer;
typedef int fmi2Boolean;
typedef const char *fmi2String;
typedef char fmi2Byte;
typedef enum { fmi2OK, fmi2Warning, fmi2Discard, fmi2Error, fmi2Fatal, fmi2Pending } fmi2Status;
typedef enum { fmi2ModelExchange, fmi2CoSimulation } fmi2Type;
typedef enum { fmi2DoStepStatus, fmi2PendingStatus, fmi2LastSuccessfulTime, fmi2Terminated } fmi2StatusKind;
typedef struct {
    void *unused;
} fmi2CallbackFunctions;
#endif
