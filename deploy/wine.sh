# Sets up Wine for the script that sources this: `$wine` is the program, and `use_wine FOLDER` its settings.

wine=$(command -v wine64 || echo /usr/lib/wine/wine64)

# Uses a Wine of FOLDER's own, so that nothing of the user's is used or changed, and opens no window. Puts into FOLDER a
# stand-in for the one DLL that Wine 8 lacks, which belongs beside the programs.
use_wine() {
    export WINEPREFIX=$1/wine WINEDEBUG=-all WINEDLLOVERRIDES="bcryptprimitives=n;mscoree=;mshtml=" DISPLAY=
    x86_64-w64-mingw32-gcc -O2 -shared -o "$1/bcryptprimitives.dll" deploy/process_prng.c -ladvapi32
}
