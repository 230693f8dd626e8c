// What the linker asks of a Windows library that has no C runtime; in one file of it only.
#pragma once

extern "C" int DllMainCRTStartup(void*, unsigned, void*) { return 1; }

// Called by functions whose frame is larger than a page, its bytes in rax: touches every page on the way, as Windows grows a stack
// by one page at a time. Changes no register.
asm(R"(
    .globl ___chkstk_ms
___chkstk_ms:
    pushq %rcx
    pushq %rax
    leaq 24(%rsp), %rcx
    jmp 2f
1:  subq $4096, %rcx
    orb $0, (%rcx)
    subq $4096, %rax
2:  cmpq $4096, %rax
    ja 1b
    subq %rax, %rcx
    orb $0, (%rcx)
    popq %rax
    popq %rcx
    ret
)");
