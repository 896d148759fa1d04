# find_package(kvscatter) defines
#   kvscatter::kvscatter   the shared library, or the static library if no shared library is installed
#   kvscatter::static      the static library
# This file is in PREFIX/share/kvscatter/cmake and finds PREFIX from there, so that the installed tree may be moved.
get_filename_component(_kvscatter_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

find_path(kvscatter_INCLUDE_DIR kvscatter.h HINTS "${_kvscatter_prefix}/include" NO_DEFAULT_PATH)
# Some distributions have a folder for each architecture.
find_library(kvscatter_SHARED_LIBRARY NAMES "${CMAKE_SHARED_LIBRARY_PREFIX}kvscatter${CMAKE_SHARED_LIBRARY_SUFFIX}"
  HINTS "${_kvscatter_prefix}" PATH_SUFFIXES "lib/${CMAKE_LIBRARY_ARCHITECTURE}" lib64 lib NO_DEFAULT_PATH)
find_library(kvscatter_STATIC_LIBRARY NAMES "${CMAKE_STATIC_LIBRARY_PREFIX}kvscatter${CMAKE_STATIC_LIBRARY_SUFFIX}"
  HINTS "${_kvscatter_prefix}" PATH_SUFFIXES "lib/${CMAKE_LIBRARY_ARCHITECTURE}" lib64 lib NO_DEFAULT_PATH)
mark_as_advanced(kvscatter_INCLUDE_DIR kvscatter_SHARED_LIBRARY kvscatter_STATIC_LIBRARY)

include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(kvscatter_STATIC_LIBRARY AND NOT TARGET kvscatter::static)
  add_library(kvscatter::static STATIC IMPORTED)
  set_target_properties(kvscatter::static PROPERTIES
    IMPORTED_LOCATION "${kvscatter_STATIC_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${kvscatter_INCLUDE_DIR}")
  target_link_libraries(kvscatter::static INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
  if(UNIX)
    target_link_libraries(kvscatter::static INTERFACE m)
  endif()
endif()

if(kvscatter_SHARED_LIBRARY AND NOT TARGET kvscatter::kvscatter)
  add_library(kvscatter::kvscatter SHARED IMPORTED)
  set_target_properties(kvscatter::kvscatter PROPERTIES
    IMPORTED_LOCATION "${kvscatter_SHARED_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${kvscatter_INCLUDE_DIR}")
elseif(kvscatter_STATIC_LIBRARY AND NOT TARGET kvscatter::kvscatter)
  add_library(kvscatter::kvscatter ALIAS kvscatter::static)
endif()

if(NOT kvscatter_INCLUDE_DIR OR NOT TARGET kvscatter::kvscatter)
  set(kvscatter_FOUND FALSE)
  set(kvscatter_NOT_FOUND_MESSAGE "kvscatter.h or its libraries are not below ${_kvscatter_prefix}")
endif()
unset(_kvscatter_prefix)
