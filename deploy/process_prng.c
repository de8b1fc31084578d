/* A stand-in for bcryptprimitives.dll, which Wine below 10 lacks and Rust's standard library needs. For tests only. */
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG bytes);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T bytes) { return SystemFunction036(buffer, bytes); }
